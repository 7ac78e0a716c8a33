// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.produce_quantize.

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{producer must be one of relu, gelu, gelu_tanh, silu, silu_and_multiply, layer_norm, rms_norm, got tanh [produce_quantize_c1]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "tanh", role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c2
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<64xf32>) {
  // expected-error @+1 {{layer_norm reads (weight, bias) beside the source, got (weight) [produce_quantize_c2]}}
  %0 = "scaled.produce_quantize"(%x, %weight) {epsilon = 1.0e-5 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>, producer = "layer_norm", role = "input"} : (tensor<64x64xf32>, tensor<64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c2
func.func @f(%x: tensor<64x64xf32>, %other: tensor<64x64xf32>) {
  // expected-error @+1 {{gelu reads () beside the source, got (other) [produce_quantize_c2]}}
  %0 = "scaled.produce_quantize"(%x, %other) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c3
func.func @f(%x: tensor<64x64xi8>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [produce_quantize_c3]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xi8>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c3
func.func @f(%x: tensor<64x64xf32>, %other: tensor<64x32xf32>) {
  // expected-error @+1 {{other must be tensor<64x64xf32>, got tensor<64x32xf32> [produce_quantize_c3]}}
  %0 = "scaled.produce_quantize"(%x, %other) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, producer = "silu_and_multiply", role = "input"} : (tensor<64x64xf32>, tensor<64x32xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c3
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<32xbf16>) {
  // expected-error @+1 {{weight must be tensor<64xbf16>, got tensor<32xbf16> [produce_quantize_c3]}}
  %0 = "scaled.produce_quantize"(%x, %weight) {epsilon = 1.0e-5 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>, producer = "rms_norm", role = "input"} : (tensor<64x64xf32>, tensor<32xbf16>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must stand for [64,64] of f32, got [64,32] of f32 [produce_quantize_c4]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x32xf32>, #mx, none>
  return
}

// -----

// produce_quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be a !scaled.tensor, got tensor<64x64xf32> [produce_quantize_c4]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c5
func.func @f(%x: tensor<64x64xf32>, %weight: tensor<64xf32>) {
  // expected-error @+1 {{epsilon of rms_norm must be positive, got 0.0 [produce_quantize_c5]}}
  %0 = "scaled.produce_quantize"(%x, %weight) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0, 0>, producer = "rms_norm", role = "input"} : (tensor<64x64xf32>, tensor<64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c5
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{epsilon of gelu must be 0, got 1.0 [produce_quantize_c5]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 1.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c6
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{role must be one of input, weight, grad_output, got output [produce_quantize_c6]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "output"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{rounding must be to nearest, got stochastic [produce_quantize_c7]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "grad_output"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #nvsr, none>
  return
}

// -----

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{scale must be there for a delayed scheme and only then, got none [produce_quantize_c7]}}
  %0 = "scaled.produce_quantize"(%x) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>, producer = "gelu", role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #delayed, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>, %scale: tensor<f32>) {
  // expected-error @+1 {{scale must be there for a delayed scheme and only then, got one [produce_quantize_c7]}}
  %0 = "scaled.produce_quantize"(%x, %scale) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 1>, producer = "gelu", role = "input"} : (tensor<64x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
// produce_quantize_c7
func.func @f(%x: tensor<64x64xf32>, %scale: tensor<1xf32>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<1xf32> [produce_quantize_c7]}}
  %0 = "scaled.produce_quantize"(%x, %scale) {epsilon = 0.0 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0, 1>, producer = "gelu", role = "input"} : (tensor<64x64xf32>, tensor<1xf32>) -> !scaled.tensor<tensor<64x64xf32>, #delayed, none>
  return
}
