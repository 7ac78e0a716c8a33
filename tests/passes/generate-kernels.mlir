// RUN: steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_90a}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_90a},gpu.module(convert-scf-to-cf,convert-gpu-to-nvvm,reconcile-unrealized-casts)' | FileCheck %s --check-prefix=NVVM
// RUN: not steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_75}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: a CUDA target must be one of sm_89, sm_90a, sm_100a, sm_120a, got 'sm_75'

// One kernel makes both copies. Rows of 64 are whole vectors, and so are columns of 32.
// CHECK: @quantize_0
// CHECK-SAME: scaled.launches = [@quantize_bf16_row_e4m3_1x32_col_e4m3_32x1::@quantize_bf16_row_e4m3_1x32_col_e4m3_32x1]
func.func private @quantize_0(!torch.vtensor<[32,64],bf16>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>, !torch.vtensor<[32,64],ui8>, !torch.vtensor<[1,64],ui8>) attributes {scaled.config = {col = #mxfp8_32x1, role = "input", row = #mxfp8_1x32}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales", "col.codes", "col.scales"]}

// A scale of the whole tensor waits for its amax: two launches.
// CHECK: @quantize_1
// CHECK-SAME: scaled.launches = [@amax_f32::@amax_f32, @quantize_f32_row_e4m3_tensor::@quantize_f32_row_e4m3_tensor]
func.func private @quantize_1(!torch.vtensor<[32,64],f32>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) attributes {scaled.config = {role = "input", row = #fp8_tensor}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales", "row.amax"]}

// Rows of 30 floats are no whole vectors.
// CHECK: @produce_quantize_0
// CHECK-SAME: scaled.launches = [@quantize_f32_gelu_any_row_e4m3_1x32::@quantize_f32_gelu_any_row_e4m3_1x32]
func.func private @produce_quantize_0(!torch.vtensor<[32,30],f32>) -> (!torch.vtensor<[32,30],ui8>, !torch.vtensor<[32,1],ui8>) attributes {scaled.config = {epsilon = 0.000000e+00 : f64, producer = "gelu", role = "input", row = #mxfp8_1x32}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "produce_quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// Operands of an emulated product are decoded; here one kernel serves both.
// CHECK: @gemm_0
// CHECK-SAME: scaled.launches = [@dequantize_row_e4m3_1x32_f32::@dequantize_row_e4m3_1x32_f32]
func.func private @gemm_0(!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>, !torch.vtensor<[16,64],ui8>, !torch.vtensor<[16,2],ui8>) -> !torch.vtensor<[32,16],f32> attributes {scaled.config = {epilogue = "none", kind = "fprop", lhs = #mxfp8_1x32, lhs_shape = array<i64: 32, 64>, path = "emulated", rhs = #mxfp8_1x32, rhs_shape = array<i64: 16, 64>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales"], scaled.results = ["result"]}

// A native product has no code here.
// CHECK: @gemm_1
// CHECK-NOT: scaled.launches
// CHECK: @gemm_2
func.func private @gemm_1(!torch.vtensor<[32,64],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[16,64],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32,16],f32> attributes {scaled.config = {epilogue = "none", kind = "fprop", lhs = #fp8_tensor, lhs_shape = array<i64: 32, 64>, path = "native", rhs = #fp8_tensor, rhs_shape = array<i64: 16, 64>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.codes", "rhs.scales", "rhs.amax"], scaled.results = ["result"]}

// Sizes known only at run time take the code for any: columns are stored as lines, of an unknown length here.
// CHECK-SAME: scaled.launches = [@dequantize_row_e2m1_1x16_second_level_tensor_f32_any::@{{[a-z0-9_]+}}]
func.func private @gemm_2(!torch.vtensor<[64,?],ui8>, !torch.vtensor<[64,?],ui8>, !torch.vtensor<[],f32>, !torch.vtensor<[32,?],ui8>, !torch.vtensor<[32,?],ui8>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[64,32],f32> attributes {scaled.config = {epilogue = "none", kind = "wgrad", lhs = #nvfp4_1x16, lhs_shape = array<i64: -1, 64>, path = "emulated", rhs = #nvfp4_1x16, rhs_shape = array<i64: -1, 32>}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.codes", "rhs.scales", "rhs.amax", "size"], scaled.results = ["result"]}

// CHECK: @epilogue_0
// CHECK-SAME: scaled.launches = [@epilogue_gelu_bf16_bias_bf16_preactivation::@epilogue_gelu_bf16_bias_bf16_preactivation]
func.func private @epilogue_0(!torch.vtensor<[32,64],f32>, !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[32,64],bf16>, !torch.vtensor<[32,64],bf16>) attributes {scaled.config = {epilogue = "gelu"}, scaled.destinations, scaled.device = "cuda", scaled.kernel = "epilogue", scaled.operands = ["source", "bias"], scaled.results = ["result", "preactivation"]}

// A kernel of the CPU has nothing to do with this.
// CHECK: @quantize_2
// CHECK-NOT: scaled.launches
func.func private @quantize_2(!torch.vtensor<[32,64],f32>) -> (!torch.vtensor<[32,64],ui8>, !torch.vtensor<[32,2],ui8>) attributes {scaled.config = {role = "input", row = #mxfp8_1x32}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// CHECK: gpu.module @quantize_bf16_row_e4m3_1x32_col_e4m3_32x1
// CHECK: gpu.func @quantize_bf16_row_e4m3_1x32_col_e4m3_32x1
// CHECK-SAME: kernel
// CHECK: gpu.module @amax_f32
// NVVM: llvm.func @quantize_bf16_row_e4m3_1x32_col_e4m3_32x1
// NVVM-NOT: gpu.func
