// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of !scaled.tensor; each op that has one checks them.

// tensor_c1
func.func @f(%x: !scaled.tensor<tensor<*xf32>, #mxfp8_1x32, none>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<*xf32> [tensor_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<tensor<*xf32>, #mxfp8_1x32, none> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c1
func.func @f(%x: !scaled.tensor<64x64xi8, #mxfp8_1x32>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [tensor_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xi8, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c1
func.func @f(%x: !scaled.tensor<tensor<f32>, #mxfp8_1x32, none>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<f32> [tensor_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<tensor<f32>, #mxfp8_1x32, none> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c2
func.func @f(%x: !scaled.tensor<64x64xf32, unit, #mxfp8_32x1>) {
  // expected-error @+1 {{row must be a #scaled.scheme or none, got unit [tensor_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, unit, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c2
func.func @f(%x: !scaled.tensor<64x64xf32, none>) {
  // expected-error @+1 {{a !scaled.tensor must have a rowwise or a columnwise copy, got none [tensor_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, none> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_32x1>) {
  // expected-error @+1 {{32x1 blocks must be columnwise, got them rowwise [tensor_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c3
func.func @f(%x: !scaled.tensor<64x64xf32, none, #mxfp8_1x32>) {
  // expected-error @+1 {{1x32 blocks of FP8 must be rowwise, got them columnwise [tensor_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, none, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #nvfp4_1x16_rht>) {
  // expected-error @+1 {{the random Hadamard transform must be columnwise, got it rowwise [tensor_c4]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #nvfp4_1x16_rht> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c5
func.func @f(%x: !scaled.tensor<64x64xf32, none, #nvfp4_1x16_per_row>) {
  // expected-error @+1 {{a second level per row must be rowwise, got it columnwise [tensor_c5]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, none, #nvfp4_1x16_per_row> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c6
func.func @f(%x: !scaled.tensor<64x64xf32 in 0, #mxfp8_1x32>) {
  // expected-error @+1 {{there must be at least one group, got 0 [tensor_c6]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32 in 0, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// tensor_c6
func.func @f(%x: !scaled.tensor<3x?x64xf32 in 3, #mxfp8_1x32>) {
  // expected-error @+1 {{a tensor in groups must be a matrix with a known number of columns, or a stack of 3 matrices of known size, got [3,?,64] [tensor_c6]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<3x?x64xf32 in 3, #mxfp8_1x32> -> tensor<3x?x64xf32>
  return
}

// -----

#int8 = #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>
// tensor_c6
func.func @f(%x: !scaled.tensor<64x64xf32 in 2, #int8>) {
  // expected-error @+1 {{a tensor in groups must have built-in schemes, got a user's own quantizer [tensor_c6]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32 in 2, #int8> -> tensor<64x64xf32>
  return
}
