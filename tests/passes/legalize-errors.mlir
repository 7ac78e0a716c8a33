// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_89}' --split-input-file --verify-diagnostics

func.func @f(%x: !scaled.tensor<2x4x48xf32, #fp8_tensor>, %w: !scaled.tensor<32x48xf32, #fp8_tensor>) -> tensor<2x4x32xf32> {
  // expected-error @+1 {{has sizes known only at run time or more than two dims, which needs torch's tensors on this target}}
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<2x4x48xf32, #fp8_tensor>, !scaled.tensor<32x48xf32, #fp8_tensor> -> tensor<2x4x32xf32>
  return %0 : tensor<2x4x32xf32>
}
