// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_89}' --split-input-file --verify-diagnostics

#fp8 = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
func.func @f(%x: !scaled.tensor<tensor<2x4x48xf32>, #fp8, none>, %w: !scaled.tensor<tensor<32x48xf32>, #fp8, none>) -> tensor<2x4x32xf32> {
  // expected-error @+1 {{has sizes known only at run time or more than two dims, which needs torch's tensors on this target}}
  %0 = "scaled.gemm"(%x, %w) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<2x4x48xf32>, #fp8, none>, !scaled.tensor<tensor<32x48xf32>, #fp8, none>) -> tensor<2x4x32xf32>
  return %0 : tensor<2x4x32xf32>
}
