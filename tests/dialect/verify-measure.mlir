// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.measure_quantize, scaled.measure_product, scaled.measure_influence and scaled.switch.

// measure_quantize_c1
func.func @f(%q: !scaled.tensor<8x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{quantized must have the columnwise copy, got none [measure_quantize_c1]}}
  %0 = scaled.measure_quantize columnwise %q : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<545xf64>
  return
}

// -----

// measure_quantize_c1
func.func @f(%q: !scaled.tensor<8x64xf32, #nvfp4_1x16_packed>) {
  // expected-error @+1 {{the rowwise copy must be of a built-in scheme in the compact layout, got layout packed [measure_quantize_c1]}}
  %0 = scaled.measure_quantize rowwise %q : !scaled.tensor<8x64xf32, #nvfp4_1x16_packed> -> tensor<305xf64>
  return
}

// -----

// measure_quantize_c1
func.func @f(%q: !scaled.tensor<8x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{usage must be one of rowwise, columnwise, got diagonal [measure_quantize_c1]}}
  %0 = scaled.measure_quantize diagonal %q : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<545xf64>
  return
}

// -----

// measure_quantize_c2
func.func @f(%q: !scaled.tensor<8x64xf32, #mxfp8_1x32>, %x: tensor<8x32xf32>) {
  // expected-error @+1 {{result must stand for [8,32] of f32, got [8,64] of f32 [measure_quantize_c2]}}
  %0 = scaled.measure_quantize rowwise %q source(%x) : !scaled.tensor<8x64xf32, #mxfp8_1x32>, tensor<8x32xf32> -> tensor<545xf64>
  return
}

// -----

// measure_quantize_c3
func.func @f(%q: !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>) {
  // expected-error @+1 {{ends must be there for a matrix in groups and only then, got none for !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32> [measure_quantize_c3]}}
  %0 = scaled.measure_quantize rowwise %q : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32> -> tensor<545xf64>
  return
}

// -----

// measure_quantize_c3
func.func @f(%q: !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, %ends: tensor<3xi32>) {
  // expected-error @+1 {{ends must be tensor<4xi32>, got tensor<3xi32> [measure_quantize_c3]}}
  %0 = scaled.measure_quantize rowwise %q ends(%ends) : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, tensor<3xi32> -> tensor<545xf64>
  return
}

// -----

// measure_quantize_c4: 10 numbers, a count of each of the 16 codes, and 279 counts of scales.
func.func @f(%q: !scaled.tensor<8x64xf32, #nvfp4_1x16>) {
  %0 = scaled.measure_quantize rowwise %q : !scaled.tensor<8x64xf32, #nvfp4_1x16> -> tensor<305xf64>
  // expected-error @+1 {{result must be tensor<305xf64>, got tensor<545xf64> [measure_quantize_c4]}}
  %1 = scaled.measure_quantize rowwise %q : !scaled.tensor<8x64xf32, #nvfp4_1x16> -> tensor<545xf64>
  return
}

// -----

// measure_product_c1
func.func @f(%y: tensor<8x16xf32>, %p: tensor<8x16xi32>) {
  // expected-error @+1 {{product must be a ranked tensor of f32, bf16, f16, got tensor<8x16xi32> [measure_product_c1]}}
  %0 = scaled.measure_product %y, %p : tensor<8x16xf32>, tensor<8x16xi32> -> tensor<8xf64>
  return
}

// -----

// measure_product_c2
func.func @f(%y: tensor<8x32xf32>, %p: tensor<8x16xf32>) {
  // expected-error @+1 {{computed must have shape [8,16], got [8,32] [measure_product_c2]}}
  %0 = scaled.measure_product %y, %p : tensor<8x32xf32>, tensor<8x16xf32> -> tensor<8xf64>
  return
}

// -----

// measure_product_c3
func.func @f(%y: tensor<8x16xbf16>, %p: tensor<8x16xf32>, %b: tensor<16xf32>) {
  // expected-error @+1 {{bias must be tensor<16xbf16>, got tensor<16xf32> [measure_product_c3]}}
  %0 = scaled.measure_product %y, %p bias(%b) : tensor<8x16xbf16>, tensor<8x16xf32>, tensor<16xf32> -> tensor<8xf64>
  return
}

// -----

// measure_product_c4
func.func @f(%y: tensor<8x16xf32>, %p: tensor<8x16xf32>) {
  // expected-error @+1 {{result must be tensor<8xf64>, got tensor<8xf32> [measure_product_c4]}}
  %0 = scaled.measure_product %y, %p : tensor<8x16xf32>, tensor<8x16xf32> -> tensor<8xf32>
  return
}

// -----

// measure_influence_c1
func.func @f(%y: tensor<8x16xf32>, %p: tensor<*xf32>) {
  // expected-error @+1 {{product must be a ranked tensor of f32, bf16, f16, got tensor<*xf32> [measure_influence_c1]}}
  %0 = scaled.measure_influence %y, %p, %y : tensor<8x16xf32>, tensor<*xf32>, tensor<8x16xf32> -> tensor<2xf64>
  return
}

// -----

// measure_influence_c2
func.func @f(%y: tensor<8x16xf32>, %dy: tensor<2x4x32xf32>) {
  // expected-error @+1 {{gradient must have as many columns as [8,16], got [2,4,32] [measure_influence_c2]}}
  %0 = scaled.measure_influence %y, %y, %dy : tensor<8x16xf32>, tensor<8x16xf32>, tensor<2x4x32xf32> -> tensor<2xf64>
  return
}

// -----

// measure_influence_c3
func.func @f(%y: tensor<8x16xf32>, %b: tensor<8xf32>) {
  // expected-error @+1 {{bias must be tensor<16xf32>, got tensor<8xf32> [measure_influence_c3]}}
  %0 = scaled.measure_influence %y, %y, %y bias(%b) : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8xf32> -> tensor<2xf64>
  return
}

// -----

// measure_influence_c4
func.func @f(%y: tensor<8x16xf32>) {
  // expected-error @+1 {{result must be tensor<2xf64>, got tensor<8xf64> [measure_influence_c4]}}
  %0 = scaled.measure_influence %y, %y, %y : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32> -> tensor<8xf64>
  return
}

// -----

// switch_c1
func.func @f(%on: tensor<i1>, %y: tensor<8x16xf32>) {
  // expected-error @+1 {{on must be tensor<f32>, got tensor<i1> [switch_c1]}}
  %0 = scaled.switch %on, %y, %y : tensor<i1>, tensor<8x16xf32>, tensor<8x16xf32> -> tensor<8x16xf32>
  return
}

// -----

// switch_c2
func.func @f(%on: tensor<f32>, %y: tensor<8x16xf32>, %z: tensor<8x16xbf16>) {
  // expected-error @+1 {{quantized must be tensor<8x16xbf16>, got tensor<8x16xf32> [switch_c2]}}
  %0 = scaled.switch %on, %y, %z : tensor<f32>, tensor<8x16xf32>, tensor<8x16xbf16> -> tensor<8x16xbf16>
  return
}
