// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.transpose.

// transpose_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #fp8_tensor, #fp8_tensor>) {
  // expected-error @+1 {{source must have exactly one copy, got both [transpose_c1]}}
  %0 = scaled.transpose %x : !scaled.tensor<64x64xf32, #fp8_tensor, #fp8_tensor> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  return
}

// -----

// transpose_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{source must be a !scaled.tensor, got tensor<64x64xf32> [transpose_c1]}}
  %0 = scaled.transpose %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  return
}

// -----

// transpose_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{the scales of 1x32 blocks serve one usage only; quantize the other copy from the source [transpose_c2]}}
  %0 = scaled.transpose %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> !scaled.tensor<64x64xf32, none, #mxfp8_32x1>
  return
}

// -----

// transpose_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_32x32_gemm>) {
  // expected-error @+1 {{scales must be in the compact layout, got gemm [transpose_c3]}}
  %0 = scaled.transpose %x : !scaled.tensor<64x64xf32, #mxfp8_32x32_gemm> -> !scaled.tensor<64x64xf32, none, #mxfp8_32x32_gemm>
  return
}

// -----

// transpose_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #fp8_tensor>) {
  // expected-error @+1 {{result must be the source with its one copy columnwise, got !scaled.tensor<64x64xf32, #fp8_tensor> [transpose_c4]}}
  %0 = scaled.transpose %x : !scaled.tensor<64x64xf32, #fp8_tensor> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  return
}

// -----

// transpose_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #fp8_tensor>) {
  // expected-error @+1 {{result must be the source with its one copy columnwise, got !scaled.tensor<64x32xf32, none, #fp8_tensor> [transpose_c4]}}
  %0 = scaled.transpose %x : !scaled.tensor<64x64xf32, #fp8_tensor> -> !scaled.tensor<64x32xf32, none, #fp8_tensor>
  return
}
