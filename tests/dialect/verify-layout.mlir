// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.pad, scaled.unpad, scaled.flatten, scaled.turn, scaled.swizzle and scaled.pack.

// pad_c0
func.func @f(%x: tensor<60x64xf32>) {
  // expected-error @+1 {{'scaled.pad' op must have the operands, results and attributes it declares: multiples must be a DenseI64ArrayAttr, got "16" [pad_c0]}}
  %0 = "scaled.pad"(%x) {multiples = "16"} : (tensor<60x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

// pad_c1
func.func @f(%x: tensor<4xi8>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<4xi8> [pad_c1]}}
  %0 = scaled.pad %x to multiples(8) : tensor<4xi8> -> tensor<8xi8>
  return
}

// -----

// pad_c1
func.func @f(%x: tensor<60x64xf32>) {
  // expected-error @+1 {{source and result must differ in shape only [pad_c1]}}
  %0 = scaled.pad %x to multiples(16, 16) : tensor<60x64xf32> -> tensor<64x64xbf16>
  return
}

// -----

// pad_c2
func.func @f(%x: tensor<60x64xf32>) {
  // expected-error @+1 {{there must be 2 multiples, each at least 1, got [16] [pad_c2]}}
  %0 = scaled.pad %x to multiples(16) : tensor<60x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// pad_c2
func.func @f(%x: tensor<60x64xf32>) {
  // expected-error @+1 {{there must be 2 multiples, each at least 1, got [16, 0] [pad_c2]}}
  %0 = scaled.pad %x to multiples(16, 0) : tensor<60x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// pad_c3
func.func @f(%x: tensor<60x?xf32>) {
  // expected-error @+1 {{result must have shape [64,?], got [60,64] [pad_c3]}}
  %0 = scaled.pad %x to multiples(16, 16) : tensor<60x?xf32> -> tensor<60x64xf32>
  return
}

// -----

// unpad_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{source and result must differ in shape only [unpad_c1]}}
  %0 = scaled.unpad %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<60x64xf32>
  return
}

// -----

// unpad_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{no dim of the result may be larger than in [64,64], got [65,64] [unpad_c2]}}
  %0 = scaled.unpad %x : tensor<64x64xf32> -> tensor<65x64xf32>
  return
}

// -----

// unpad_c3
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{there must be 1 sizes of type index or !torch.int, got () [unpad_c3]}}
  %0 = scaled.unpad %x : tensor<64x64xf32> -> tensor<?x64xf32>
  return
}

// -----

// unpad_c3
func.func @f(%x: tensor<64x64xf32>, %size: i32) {
  // expected-error @+1 {{there must be 1 sizes of type index or !torch.int, got (i32) [unpad_c3]}}
  %0 = scaled.unpad %x sizes(%size) : tensor<64x64xf32>, i32 -> tensor<?x64xf32>
  return
}

// -----

// swizzle_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #fp8_tensor>) {
  // expected-error @+1 {{every copy must have block scales in the compact layout, got block tensor in layout compact [swizzle_c1]}}
  %0 = scaled.swizzle %x : !scaled.tensor<64x64xf32, #fp8_tensor> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  return
}

// -----

// swizzle_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_32x32_gemm>) {
  // expected-error @+1 {{every copy must have block scales in the compact layout, got block 32x32 in layout gemm [swizzle_c1]}}
  %0 = scaled.swizzle %x : !scaled.tensor<64x64xf32, #mxfp8_32x32_gemm> -> !scaled.tensor<64x64xf32, #mxfp8_32x32_gemm>
  return
}

// -----

// swizzle_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{result must be the source with layout gemm in every copy, got !scaled.tensor<64x64xf32, #mxfp8_1x32> [swizzle_c2]}}
  %0 = scaled.swizzle %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// pack_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{every copy must be in f4E2M1FN in the compact layout, got f8E4M3FN in layout compact [pack_c1]}}
  %0 = scaled.pack %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// pack_c1
func.func @f(%x: !scaled.tensor<?x64xf32, #nvfp4_1x16>) {
  // expected-error @+1 {{source must be a matrix of known size, or a stack of matrices in groups, got [?,64] [pack_c1]}}
  %0 = scaled.pack %x : !scaled.tensor<?x64xf32, #nvfp4_1x16> -> !scaled.tensor<?x64xf32, #nvfp4_1x16_packed>
  return
}

// -----

// pack_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #nvfp4_1x16>) {
  // expected-error @+1 {{result must be the source with layout packed in every copy, got !scaled.tensor<64x64xf32, #nvfp4_1x16> [pack_c2]}}
  %0 = scaled.pack %x : !scaled.tensor<64x64xf32, #nvfp4_1x16> -> !scaled.tensor<64x64xf32, #nvfp4_1x16>
  return
}

// -----

// pad_c4
func.func @f(%x: !scaled.tensor<60x64xf32, #mxfp8_1x32_gemm>) {
  // expected-error @+1 {{copies must be in the compact layout, got gemm [pad_c4]}}
  %0 = scaled.pad %x to multiples(16, 32) : !scaled.tensor<60x64xf32, #mxfp8_1x32_gemm> -> !scaled.tensor<64x64xf32, #mxfp8_1x32_gemm>
  return
}

// -----

// flatten_c1
func.func @f(%x: !scaled.tensor<64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{source must have at least one dim before the last, got [64] [flatten_c1]}}
  %0 = scaled.flatten %x : !scaled.tensor<64xf32, #mxfp8_1x32> -> !scaled.tensor<1x64xf32, #mxfp8_1x32>
  return
}

// -----

// flatten_c2
func.func @f(%x: !scaled.tensor<2x3x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{result must be the source with shape [6,64], got !scaled.tensor<5x64xf32, #mxfp8_1x32> [flatten_c2]}}
  %0 = scaled.flatten %x : !scaled.tensor<2x3x64xf32, #mxfp8_1x32> -> !scaled.tensor<5x64xf32, #mxfp8_1x32>
  return
}

// -----

// turn_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{source must be a matrix with one compact columnwise MX copy, got [64,64] with 1x32 in layout compact [turn_c1]}}
  %0 = scaled.turn %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// turn_c1
func.func @f(%x: !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned>) {
  // expected-error @+1 {{source must be a matrix with one compact columnwise MX copy, got [64,64] with 32x1 in layout turned [turn_c1]}}
  %0 = scaled.turn %x : !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned> -> !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned>
  return
}

// -----

// turn_c1
func.func @f(%x: !scaled.tensor<2x64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{source must be a matrix with one compact columnwise MX copy, got [2,64,64] with 32x1 in layout compact [turn_c1]}}
  %0 = scaled.turn %x : !scaled.tensor<2x64x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<2x64x64xf32, none, #mxfp8_32x1_turned>
  return
}

// -----

// turn_c2
func.func @f(%x: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{result must be the source with layout turned, got !scaled.tensor<64x64xf32, none, #mxfp8_32x1> [turn_c2]}}
  %0 = scaled.turn %x : !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<64x64xf32, none, #mxfp8_32x1>
  return
}

// -----

// swizzle_c1
func.func @f(%x: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{every copy must have block scales in the turned layout, got block 32x1 in layout compact [swizzle_c1]}}
  %0 = scaled.swizzle %x : !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<64x64xf32, none, #mxfp8_32x1>
  return
}
