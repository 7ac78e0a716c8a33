// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.dequantize.

// dequantize_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{usage must be one of rowwise, columnwise, got both [dequantize_c1]}}
  %0 = scaled.dequantize both %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// dequantize_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{source must be a !scaled.tensor, got tensor<64x64xf32> [dequantize_c1]}}
  %0 = scaled.dequantize rowwise %x : tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// dequantize_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{source must have the columnwise copy, got none [dequantize_c1]}}
  %0 = scaled.dequantize columnwise %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// dequantize_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #nvfp4_1x16, #nvfp4_1x16_rht>) {
  // expected-error @+1 {{the columnwise copy must be of the source's values, got transformed ones [dequantize_c2]}}
  %0 = scaled.dequantize columnwise %x : !scaled.tensor<64x64xf32, #nvfp4_1x16, #nvfp4_1x16_rht> -> tensor<64x64xf32>
  return
}

// -----

// dequantize_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{result must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [dequantize_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xi8>
  return
}

// -----

// dequantize_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{result must have shape [64,64], got [64] [dequantize_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64xf32>
  return
}

// -----

// dequantize_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #nvfp4_1x16_packed>) {
  // expected-error @+1 {{the rowwise copy must be in the compact layout, got layout packed [dequantize_c4]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #nvfp4_1x16_packed> -> tensor<64x64xf32>
  return
}
