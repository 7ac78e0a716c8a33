// RUN: steelyard-opt %s -p 'scaled-select-kernels{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-select-kernels{target=cuda:sm_100a}' | FileCheck %s --check-prefix=CUDA
// RUN: not steelyard-opt %s -p 'scaled-select-kernels{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of cpu, cuda:sm_89, cuda:sm_90a, cuda:sm_100a, cuda:sm_103a, cuda:sm_120a, cuda:sm_121a, got 'abacus'

#own = #scaled.scheme<i8, "tensor", f32, {custom = "Mine"}>

// CHECK: @quantize_0
// CHECK-SAME: scaled.destinations, scaled.device = "cpu", scaled.kernel = "quantize"
func.func private @quantize_0(!torch.vtensor<[8,64],f32>) -> (!torch.vtensor<[8,64],ui8>, !torch.vtensor<[8,2],ui8>) attributes {scaled.config = {role = "input", row = #mxfp8_1x32}, scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// CUDA: @quantize_0
// CUDA-SAME: scaled.destinations, scaled.device = "cuda", scaled.kernel = "quantize"

// A user's quantizer allocates what it makes.
// CHECK: @quantize_1
// CHECK-NOT: scaled.destinations
// CHECK-SAME: scaled.device = "custom", scaled.kernel = "quantize"
func.func private @quantize_1(!torch.vtensor<[8,64],f32>) -> !scaled.tensor<8x64xf32, #own> attributes {scaled.config = {layer = "up", role = "input", row = #own}, scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["storage"]}

// CUDA: @quantize_1
// CUDA-NOT: scaled.destinations
// CUDA-SAME: scaled.device = "custom", scaled.kernel = "quantize"

// CUDA: @swizzle_0
// CUDA-NOT: scaled.destinations
// CUDA-SAME: scaled.device = "cuda", scaled.kernel = "swizzle"
func.func private @swizzle_0(!torch.vtensor<[8,2],ui8>) -> !torch.vtensor<[128,4],ui8> attributes {scaled.config = {scheme = #mxfp8_1x32, shape = array<i64: 8, 64>, usage = "rowwise"}, scaled.kernel = "swizzle", scaled.operands = ["row.scales"], scaled.results = ["row.scales"]}

// CUDA: @gemm_0
// CUDA-SAME: path = "native"
// CUDA-NOT: scaled.destinations
// CUDA-SAME: scaled.device = "cuda", scaled.kernel = "gemm"
func.func private @gemm_0(!torch.vtensor<[8,64],ui8>, !torch.vtensor<[128,4],ui8>, !torch.vtensor<[16,64],ui8>, !torch.vtensor<[128,4],ui8>) -> !torch.vtensor<[8,16],f32> attributes {scaled.config = {epilogue = "none", kind = "fprop", lhs = #mxfp8_1x32_gemm, lhs_shape = array<i64: 8, 64>, path = "native", rhs = #mxfp8_1x32_gemm, rhs_shape = array<i64: 16, 64>}, scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales"], scaled.results = ["result"]}

// CUDA: @gemm_1
// CUDA-NOT: scaled.destinations
// CUDA-SAME: scaled.device = "cuda", scaled.kernel = "gemm"
func.func private @gemm_1(!torch.vtensor<[24,32],ui8>, !torch.vtensor<[24,1],ui8>, !torch.vtensor<[24,32],ui8>, !torch.vtensor<[24,1],ui8>) -> !torch.vtensor<[3,8,8],f32> attributes {scaled.config = {batch_dims = 1 : i64, epilogue = "none", kind = "fprop", lhs = #mxfp8_1x32, lhs_shape = array<i64: 3, 8, 32>, path = "emulated", rhs = #mxfp8_1x32, rhs_shape = array<i64: 3, 8, 32>}, scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales"], scaled.results = ["result"]}

// CUDA: @epilogue_0
// CUDA-SAME: scaled.destinations, scaled.device = "cuda", scaled.kernel = "epilogue"
func.func private @epilogue_0(!torch.vtensor<[8,16],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[8,16],bf16> attributes {scaled.config = {epilogue = "gelu"}, scaled.kernel = "epilogue", scaled.operands = ["source", "bias"], scaled.results = ["result"]}

// CUDA-LABEL: func.func @high_precision
// CUDA: torch.aten.linear %arg0, %arg1, %none
// CHECK-LABEL: func.func @high_precision
// CHECK: %[[Y:.*]] = torch.aten.linear %arg0, %arg1, %none
// CHECK: %[[DX:.*]] = torch.aten.matmul %arg2, %arg1
// CHECK: %[[FLAT:.*]] = torch.aten.reshape %arg2
// CHECK: %[[X:.*]] = torch.aten.reshape %arg0
// CHECK: %[[T:.*]] = torch.aten.transpose.int %[[FLAT]]
// CHECK: torch.aten.matmul %[[T]], %[[X]]
// CHECK: %[[K:.*]] = torch.aten.transpose.int %arg3
// CHECK: torch.aten.matmul %arg3, %[[K]]
func.func @high_precision(%x: !torch.vtensor<[2,4,64],f32>, %w: !torch.vtensor<[5,64],f32>, %dy: !torch.vtensor<[2,4,5],f32>, %q: !torch.vtensor<[3,6,8],f32>) -> (!torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,64],f32>, !torch.vtensor<[5,64],f32>, !torch.vtensor<[3,6,6],f32>) {
  %0 = scaled.matmul fprop %x, %w at "up" : !torch.vtensor<[2,4,64],f32>, !torch.vtensor<[5,64],f32> -> !torch.vtensor<[2,4,5],f32>
  %1 = scaled.matmul dgrad %dy, %w at "up" : !torch.vtensor<[2,4,5],f32>, !torch.vtensor<[5,64],f32> -> !torch.vtensor<[2,4,64],f32>
  %2 = scaled.matmul wgrad %dy, %x at "up" : !torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,64],f32> -> !torch.vtensor<[5,64],f32>
  %3 = scaled.matmul fprop %q, %q batch_dims(1) at "up" : !torch.vtensor<[3,6,8],f32>, !torch.vtensor<[3,6,8],f32> -> !torch.vtensor<[3,6,6],f32>
  return %0, %1, %2, %3 : !torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,64],f32>, !torch.vtensor<[5,64],f32>, !torch.vtensor<[3,6,6],f32>
}

// CHECK-LABEL: func.func @experts_in_high_precision
// CHECK: %[[W:.*]] = torch.aten.transpose.int %arg1
// CHECK: torch.operator "torch.steelyard.grouped_mm"(%arg0, %[[W]], %arg3)
// CHECK: torch.operator "torch.steelyard.grouped_mm"(%arg2, %arg1, %arg3)
// CHECK: %[[DY:.*]] = torch.aten.transpose.int %arg2
// CHECK: torch.operator "torch.steelyard.grouped_mm"(%[[DY]], %arg0, %arg3) {{.*}} -> !torch.vtensor<[4,5,64],f32>
// CHECK: torch.operator "torch.aten._grouped_mm"(%arg4, %{{.*}}, %arg3, %none{{.*}}, %none
func.func @experts_in_high_precision(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[4,5,64],f32>, %dy: !torch.vtensor<[8,5],f32>, %e: !torch.vtensor<[4],si32>, %z: !torch.vtensor<[8,64],bf16>, %v: !torch.vtensor<[4,5,64],bf16>) -> (!torch.vtensor<[8,5],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,5,64],f32>, !torch.vtensor<[8,5],bf16>) {
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,5,64],f32>, !torch.vtensor<[4],si32> -> !torch.vtensor<[8,5],f32>
  %1 = scaled.grouped_matmul dgrad %dy, %w ends(%e) : !torch.vtensor<[8,5],f32>, !torch.vtensor<[4,5,64],f32>, !torch.vtensor<[4],si32> -> !torch.vtensor<[8,64],f32>
  %2 = scaled.grouped_matmul wgrad %dy, %x ends(%e) : !torch.vtensor<[8,5],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[4],si32> -> !torch.vtensor<[4,5,64],f32>
  %3 = scaled.grouped_matmul fprop %z, %v ends(%e) : !torch.vtensor<[8,64],bf16>, !torch.vtensor<[4,5,64],bf16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[8,5],bf16>
  return %0, %1, %2, %3 : !torch.vtensor<[8,5],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,5,64],f32>, !torch.vtensor<[8,5],bf16>
}
