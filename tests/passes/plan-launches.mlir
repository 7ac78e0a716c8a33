// RUN: steelyard-opt %s -p 'scaled-plan-launches{target=cuda:sm_90a}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-plan-launches{target=cpu}' | FileCheck %s --check-prefix=CPU
// RUN: not steelyard-opt %s -p 'scaled-plan-launches{target=cuda:sm_75}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'cuda:sm_75'
// CPU-NOT: scaled.launch
// CPU-NOT: gpu.module

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mx_columns = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
#fp8 = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
#fp4 = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>

// One kernel makes both copies: rows of 64 are whole vectors, and so are columns of 32. Its parameters are the source,
// its stride, rows and columns, and the parts of the copies; a tile of 64x64 takes one block.
// CHECK: @quantize_0(
// CHECK-NEXT: module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
// CHECK-NEXT: scaled.launch @quantize_bf16_row_e4m3_1x32_col_e4m3_32x1("source", 64, 32, 64, "out.row.codes", "out.row.scales", "out.col.codes", "out.col.scales") blocks(1)
// CHECK-NEXT: }
func.func private @quantize_0(!torch.vtensor<[32,64],bf16>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>, !torch.vtensor<[32,64],ui8>, !torch.vtensor<[1,64],ui8>) attributes {scaled.config = {col = #mx_columns, role = "input", row = #mx}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales", "col.codes", "col.scales"]}

// A scale of the whole tensor waits for its amax, which starts from zero. Both copies have the same one. Rows known only
// at run time make blocks and sizes expressions; where there are none, the scale follows from an amax of 0.
// CHECK: @quantize_1(
// CHECK-NEXT: module @quantize_1_launches attributes {scaled.plan = @quantize_1} {
// CHECK-NEXT: scaled.allocate "out.row.codes"("source[0]", 128) of ui8
// CHECK-NEXT: scaled.allocate "out.col.codes"(128, "source[0]") of ui8
// CHECK-NEXT: scaled.allocate temporary0() of f32
// CHECK-NEXT: scaled.allocate temporary1() of f32
// CHECK-NEXT: scaled.torch_call zero("out.row.amax")
// CHECK-NEXT: scaled.launch @amax_f32("source", 128, "source[0]", 128, "out.row.amax") blocks("(source[0] + 63) // 64 * 2")
// CHECK-NEXT: scaled.torch_call copy("out.row.amax", "out.col.amax")
// CHECK-NEXT: scaled.launch @quantize_f32_row_e4m3_tensor_col_e4m3_tensor("source", 128, "source[0]", 128, {{.*}}) blocks("(source[0] + 63) // 64 * 2")
// CHECK-NEXT: scaled.launch @compute_scale_f8E4M3FN("out.row.amax", "temporary0") blocks("source[0] * 128 == 0")
// CHECK-NEXT: scaled.launch @inverse_scale("temporary0", "out.row.scales", 1) blocks("source[0] * 128 == 0")
// CHECK-NEXT: scaled.launch @compute_scale_f8E4M3FN("out.col.amax", "temporary1")
// CHECK-NEXT: scaled.launch @inverse_scale("temporary1", "out.col.scales", 1)
// CHECK-NEXT: }
func.func private @quantize_1(!torch.vtensor<[?,128],f32>) -> (!torch.vtensor<[?,128],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[128,?],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) attributes {scaled.config = {role = "input", row = #fp8, col = #fp8}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales", "row.amax", "col.codes", "col.scales", "col.amax"]}

// Rows of 30 floats are no whole vectors; the kernel for any size takes the stride of columns too.
// CHECK: @produce_quantize_0(
// CHECK: scaled.launch @quantize_f32_gelu_any_row_e4m3_1x32("source", 30, 1, 32, 30, "out.row.codes", "out.row.scales") blocks(1)
func.func private @produce_quantize_0(!torch.vtensor<[32,30],f32>) -> (!torch.vtensor<[32,30],ui8>, !torch.vtensor<[32,1],ui8>) attributes {scaled.config = {producer = "gelu", role = "input", row = #mx}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "produce_quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// A norm reads each row before: mean and scale of rows are a temporary. 1e-5 is 0x3EE4F8B588E368F1 in 64 bits.
// CHECK: @produce_quantize_1(
// CHECK: scaled.allocate temporary0(32, 3) of f32
// CHECK-NEXT: scaled.launch @row_statistics_f32_plain("source", 64, 1, 32, 64, 4532020583610935537, "temporary0") blocks(8)
// CHECK-NEXT: scaled.launch @quantize_f32_rms_norm_f32_row_e4m3_1x32("source", 64, "temporary0", "weight", 1, 32, 64, "out.row.codes", "out.row.scales") blocks(1)
func.func private @produce_quantize_1(!torch.vtensor<[32,64],f32>, !torch.vtensor<[64],f32>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>) attributes {scaled.config = {epsilon = 1.0e-5 : f64, producer = "rms_norm", role = "input", row = #mx}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "produce_quantize", scaled.operands = ["source", "weight"], scaled.results = ["row.codes", "row.scales"]}

// Each group of rows is a matrix of its own: 100 rows in 4 groups take at most 1 + 4 lines of tiles. A group takes 4 bytes
// of scales and amaxes, a row 64 codes, and the columns of groups follow one another by rows.
// CHECK: @grouped_quantize_0(
// CHECK: scaled.torch_call zero("out.row.amax")
// CHECK-NEXT: scaled.launch @amax_bf16_groups_of_4("source", 64, 100, 64, "out.row.amax", 128, 4, "ends") blocks(5)
// CHECK-NEXT: scaled.torch_call copy("out.row.amax", "out.col.amax")
// CHECK-NEXT: scaled.launch @empty_row_scales_f8E4M3FN("out.row.scales", 4) blocks(1)
// CHECK-NEXT: scaled.launch @empty_row_scales_f8E4M3FN("out.col.scales", 4) blocks(1)
// CHECK-NEXT: scaled.launch @quantize_bf16_row_e4m3_tensor_col_e4m3_tensor_groups_of_4("source", 64, 100, 64, {{.*}}, 128, 64, 4, 4, 64, 4, 4, "ends") blocks(5)
func.func private @grouped_quantize_0(!torch.vtensor<[100,64],bf16>, !torch.vtensor<[4],si32>) -> (!torch.vtensor<[6400],ui8>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[6400],ui8>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) attributes {scaled.config = {groups = 4 : i64, role = "input", row = #fp8, col = #fp8}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "grouped_quantize", scaled.operands = ["source", "ends"], scaled.results = ["row.codes", "row.scales", "row.amax", "col.codes", "col.scales", "col.amax"]}

// Rows in blocks need no groups. A number of rows known only at run time makes sizes of parts expressions.
// CHECK: @grouped_quantize_1(
// CHECK: scaled.allocate "out.row.codes"("source[0] * 64") of ui8
// CHECK-NEXT: scaled.allocate "out.row.scales"("source[0] * 2") of ui8
// CHECK-NEXT: scaled.launch @quantize_bf16_row_e4m3_1x32("source", 64, "source[0]", 64, "out.row.codes", "out.row.scales") blocks("(source[0] + 63) // 64")
func.func private @grouped_quantize_1(!torch.vtensor<[?,64],bf16>, !torch.vtensor<[4],si32>) -> (!torch.vtensor<[?],ui8>, !torch.vtensor<[?],ui8>) attributes {scaled.config = {groups = 4 : i64, role = "input", row = #mx}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "grouped_quantize", scaled.operands = ["source", "ends"], scaled.results = ["row.codes", "row.scales"]}

// MX operands are exact in bf16, in which torch multiplies all groups at once.
// CHECK: @grouped_gemm_0(
// CHECK: scaled.allocate temporary0(100, 64) of bf16
// CHECK-NEXT: scaled.allocate temporary1(4, 40, 64) of bf16
// CHECK-NEXT: scaled.launch @dequantize_inner_row_e4m3_1x32_bf16("lhs.codes", "lhs.scales", "temporary0", 100, 64) blocks(2)
// CHECK-NEXT: scaled.launch @dequantize_inner_row_e4m3_1x32_bf16("rhs.codes", "rhs.scales", "temporary1", 160, 64) blocks(3)
// CHECK-NEXT: scaled.torch_call grouped_product("temporary0", "temporary1", "ends", 1, "out.result")
func.func private @grouped_gemm_0(!torch.vtensor<[6400],ui8>, !torch.vtensor<[200],ui8>, !torch.vtensor<[10240],ui8>, !torch.vtensor<[320],ui8>, !torch.vtensor<[4],si32>) -> !torch.vtensor<[100,40],bf16> attributes {scaled.config = {groups = 4 : i64, kind = "fprop", lhs = #mx, lhs_shape = array<i64: 100, 64>, path = "emulated", rhs = #mx, rhs_shape = array<i64: 4, 40, 64>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "grouped_gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales", "ends"], scaled.results = ["result"]}

// Scales of groups follow the sums, so that these are float32, one by one.
// CHECK: @grouped_gemm_1(
// CHECK: scaled.torch_call product_of_groups("temporary0", "temporary1", "ends", 1, "lhs.scales", 1, 1, "rhs.scales", 1, 1, "out.result")
func.func private @grouped_gemm_1(!torch.vtensor<[6400],ui8>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[10240],ui8>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],si32>) -> !torch.vtensor<[100,40],bf16> attributes {scaled.config = {groups = 4 : i64, kind = "fprop", lhs = #fp8, lhs_shape = array<i64: 100, 64>, path = "emulated", rhs = #fp8, rhs_shape = array<i64: 4, 40, 64>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "grouped_gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.codes", "rhs.scales", "rhs.amax", "ends"], scaled.results = ["result"]}

// Operands of an emulated product are decoded, to bf16 where that is exact; torch multiplies. MX columns are read by columns.
// CHECK: @gemm_0(
// CHECK: scaled.allocate temporary0(32, 64) of bf16
// CHECK-NEXT: scaled.allocate temporary1(64, 16) of bf16
// CHECK-NEXT: scaled.launch @dequantize_inner_row_e4m3_1x32_bf16("lhs.codes", "lhs.scales", "temporary0", 32, 64) blocks(1)
// CHECK-NEXT: scaled.launch @dequantize_inner_col_e4m3_32x1_bf16("rhs.codes", "rhs.scales", "temporary1", 64, 16) blocks(1)
// CHECK-NEXT: scaled.torch_call product("temporary0", "temporary1^T", "out.result")
func.func private @gemm_0(!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>, !torch.vtensor<[64,16],ui8>, !torch.vtensor<[2,16],ui8>) -> !torch.vtensor<[32,16],f32> attributes {scaled.config = {kind = "dgrad", lhs = #mx, lhs_shape = array<i64: 32, 64>, path = "emulated", rhs = #mx_columns, rhs_shape = array<i64: 64, 16>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales"], scaled.results = ["result"]}

// A native product is torch's own.
// CHECK: @gemm_1(
// CHECK-NOT: scaled.launch
// CHECK: @gemm_2(
func.func private @gemm_1(!torch.vtensor<[32,64],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[16,64],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32,16],f32> attributes {scaled.config = {kind = "fprop", lhs = #fp8, lhs_shape = array<i64: 32, 64>, path = "native", rhs = #fp8, rhs_shape = array<i64: 16, 64>}, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.codes", "rhs.scales", "rhs.amax"], scaled.results = ["result"]}

// Columns are stored as lines, of an unknown length here, which takes the code for any size. Sums are multiplied by the
// second level: the amax over 6 * 448.
// CHECK: scaled.launch @dequantize_inner_row_e2m1_1x16_second_level_tensor_bf16_any("lhs.codes", "lhs.scales", "temporary0", 64, "size") blocks("(size + 63) // 64")
// CHECK: scaled.torch_call scaled_product("temporary0", "temporary1", "lhs.amax", 2688, "rhs.amax", 2688, "out.result")
func.func private @gemm_2(!torch.vtensor<[64,?],ui8>, !torch.vtensor<[64,?],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[32,?],ui8>, !torch.vtensor<[32,?],ui8>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[64,32],f32> attributes {scaled.config = {kind = "wgrad", lhs = #fp4, lhs_shape = array<i64: -1, 64>, path = "emulated", rhs = #fp4, rhs_shape = array<i64: -1, 32>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.codes", "rhs.scales", "rhs.amax", "size"], scaled.results = ["result"]}

// CHECK: @epilogue_0(
// CHECK: scaled.launch @epilogue_gelu_bf16_bias_bf16_preactivation("source", 64, "bias", "out.result", "out.preactivation", 32, 64) blocks(1)
func.func private @epilogue_0(!torch.vtensor<[32,64],f32>, !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[32,64],bf16>, !torch.vtensor<[32,64],bf16>) attributes {scaled.config = {epilogue = "gelu"}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "epilogue", scaled.operands = ["source", "bias"], scaled.results = ["result", "preactivation"]}

// A kernel of the CPU has nothing to do with this.
// CHECK: @quantize_2(
// CHECK-NOT: scaled.launch
func.func private @quantize_2(!torch.vtensor<[32,64],f32>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>) attributes {scaled.config = {role = "input", row = #mx}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// What the caller gives may lie in any way, and so may what torch makes of it; what a kernel made lies in order, in
// another shape too.
// CHECK: func.func @forward(%[[X:.*]]: !torch.vtensor<[32,64],f32>, %[[BIAS:.*]]: !torch.vtensor<[64],bf16>)
// CHECK-NEXT: %[[OWN_BIAS:.*]] = scaled.contiguous %[[BIAS]]
// CHECK-NEXT: %[[OWN_X:.*]] = scaled.contiguous %[[X]]
// CHECK-NEXT: call @epilogue_0(%[[OWN_X]], %[[OWN_BIAS]])
// CHECK-NEXT: %[[SUM:.*]] = torch.aten.t
// CHECK-NEXT: %[[OWN_SUM:.*]] = scaled.contiguous %[[SUM]]
// CHECK-NEXT: %[[MADE:.*]]:2 = call @epilogue_0(%[[OWN_SUM]], %[[OWN_BIAS]])
// CHECK: %[[VIEW:.*]] = torch.aten.view %[[MADE]]#0
// CHECK-NEXT: call @quantize_0(%[[VIEW]])
func.func @forward(%x: !torch.vtensor<[32,64],f32>, %bias: !torch.vtensor<[64],bf16>) {
  %0:2 = func.call @epilogue_0(%x, %bias) : (!torch.vtensor<[32,64],f32>, !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[32,64],bf16>, !torch.vtensor<[32,64],bf16>)
  %1 = torch.aten.t %x : !torch.vtensor<[32,64],f32> -> !torch.vtensor<[32,64],f32>
  %2:2 = func.call @epilogue_0(%1, %bias) : (!torch.vtensor<[32,64],f32>, !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[32,64],bf16>, !torch.vtensor<[32,64],bf16>)
  %int32 = torch.constant.int 32
  %int64 = torch.constant.int 64
  %sizes = torch.prim.ListConstruct %int32, %int64 : (!torch.int, !torch.int) -> !torch.list<int>
  %3 = torch.aten.view %2#0, %sizes : !torch.vtensor<[32,64],bf16>, !torch.list<int> -> !torch.vtensor<[32,64],bf16>
  %4:4 = func.call @quantize_0(%3) : (!torch.vtensor<[32,64],bf16>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>, !torch.vtensor<[32,64],ui8>, !torch.vtensor<[1,64],ui8>)
  return
}

// Each kernel is declared once, with what its code follows from.
// CHECK: gpu.module @quantize_bf16_row_e4m3_1x32_col_e4m3_32x1 attributes {scaled.code = {copies = [{aligned = true, columnwise = false, scheme = #mxfp8_1x32}, {aligned = true, columnwise = true, scheme = #mxfp8_32x1}], kernel = "quantize", source = {dtype = "bf16"}}}
// CHECK: gpu.module @amax_f32 attributes {scaled.code = {kernel = "amax", source = {dtype = "f32"}}}
// CHECK-NOT: gpu.module @amax_f32
