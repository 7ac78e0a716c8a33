// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.produce_quantize.

// produce_quantize_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{producer must be one of relu, gelu, gelu_tanh, silu, silu_and_multiply, layer_norm, rms_norm, got tanh [produce_quantize_c1]}}
  %0 = scaled.produce_quantize input tanh %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c2
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<64xf32>) {
  // expected-error @+1 {{layer_norm reads (weight, bias) beside the source, got (weight) [produce_quantize_c2]}}
  %0 = scaled.produce_quantize input layer_norm %x weight(%weight) epsilon(1.0e-5) : tensor<64x64xf32>, tensor<64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c2
func.func @f(%x: tensor<64x64xf32>, %other: tensor<64x64xf32>) {
  // expected-error @+1 {{gelu reads () beside the source, got (other) [produce_quantize_c2]}}
  %0 = scaled.produce_quantize input gelu %x other(%other) : tensor<64x64xf32>, tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c3
func.func @f(%x: tensor<64x64xi8>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [produce_quantize_c3]}}
  %0 = scaled.produce_quantize input gelu %x : tensor<64x64xi8> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c3
func.func @f(%x: tensor<64x64xf32>, %other: tensor<64x32xf32>) {
  // expected-error @+1 {{other must be tensor<64x64xf32>, got tensor<64x32xf32> [produce_quantize_c3]}}
  %0 = scaled.produce_quantize input silu_and_multiply %x other(%other) : tensor<64x64xf32>, tensor<64x32xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c3
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<32xbf16>) {
  // expected-error @+1 {{weight must be tensor<64xbf16>, got tensor<32xbf16> [produce_quantize_c3]}}
  %0 = scaled.produce_quantize input rms_norm %x weight(%weight) epsilon(1.0e-5) : tensor<64x64xf32>, tensor<32xbf16> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must stand for [64,64] of f32, got [64,32] of f32 [produce_quantize_c4]}}
  %0 = scaled.produce_quantize input gelu %x : tensor<64x64xf32> -> !scaled.tensor<64x32xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be a !scaled.tensor, got tensor<64x64xf32> [produce_quantize_c4]}}
  %0 = scaled.produce_quantize input gelu %x : tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// produce_quantize_c5
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<64xf32>) {
  // expected-error @+1 {{epsilon of rms_norm must be positive, got 0.0 [produce_quantize_c5]}}
  %0 = scaled.produce_quantize input rms_norm %x weight(%weight) : tensor<64x64xf32>, tensor<64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c5
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{epsilon of gelu must be 0, got 1.0 [produce_quantize_c5]}}
  %0 = scaled.produce_quantize input gelu %x epsilon(1.0) : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c6
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{role must be one of input, weight, grad_output, got output [produce_quantize_c6]}}
  %0 = scaled.produce_quantize output gelu %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{rounding must be to nearest, got stochastic [produce_quantize_c7]}}
  %0 = scaled.produce_quantize grad_output gelu %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>
  return
}

// -----

// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{scale must be there for a delayed or static scheme and only then, got none [produce_quantize_c7]}}
  %0 = scaled.produce_quantize input gelu %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor_delayed>
  return
}

// -----

// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>, %scale: tensor<f32>) {
  // expected-error @+1 {{scale must be there for a delayed or static scheme and only then, got one [produce_quantize_c7]}}
  %0 = scaled.produce_quantize input gelu %x scale(%scale) : tensor<64x64xf32>, tensor<f32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>, %scale: tensor<1xf32>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<1xf32> [produce_quantize_c7]}}
  %0 = scaled.produce_quantize input gelu %x scale(%scale) : tensor<64x64xf32>, tensor<1xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor_delayed>
  return
}
