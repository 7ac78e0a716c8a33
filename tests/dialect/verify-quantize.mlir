// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.quantize.

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c1
func.func @f(%x: tensor<64x64xf64>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xf64> [quantize_c1]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf64>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

// quantize_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be a !scaled.tensor, got tensor<64x64xf32> [quantize_c2]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must stand for [64,64] of f32, got [64,32] of f32 [quantize_c2]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x32xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c2
func.func @f(%x: tensor<64x64xbf16>) {
  // expected-error @+1 {{result must stand for [64,64] of bf16, got [64,64] of f32 [quantize_c2]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xbf16>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c3
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{role must be one of input, weight, grad_output, got output [quantize_c3]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "output"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
// quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{a delayed scheme needs the operand scale, got none [quantize_c4]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #delayed, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c4
func.func @f(%x: tensor<64x64xf32>, %s: tensor<f32>) {
  // expected-error @+1 {{the operand scale needs schemes with one scale a tensor, got block scales [quantize_c4]}}
  %0 = "scaled.quantize"(%x, %s) {layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// quantize_c5
func.func @f(%x: tensor<64x64xf32>, %s: tensor<f32>, %a: tensor<f32>) {
  // expected-error @+1 {{amax and scale exclude each other, got both [quantize_c5]}}
  %0 = "scaled.quantize"(%x, %s, %a) {layer = "", operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #tensor, none>
  return
}

// -----

#b128 = #scaled.scheme<f8E4M3FN, "1x128", f32, {power_of_two}>
// quantize_c5
func.func @f(%x: tensor<64x64xf32>, %a: tensor<f32>) {
  // expected-error @+1 {{the operand amax needs current per-tensor or f4E2M1FN schemes without the transform [quantize_c5]}}
  %0 = "scaled.quantize"(%x, %a) {layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #b128, none>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#nvrht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor"}>
// quantize_c5
func.func @f(%x: tensor<64x64xf32>, %a: tensor<f32>) {
  // expected-error @+1 {{the operand amax needs current per-tensor or f4E2M1FN schemes without the transform [quantize_c5]}}
  %0 = "scaled.quantize"(%x, %a) {layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #nv, #nvrht>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// quantize_c6
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{rng must be there for stochastic rounding and only then, got none [quantize_c6]}}
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #nvsr, none>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
// quantize_c6
func.func @f(%x: tensor<64x64xf32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{rng must be there for stochastic rounding and only then, got one [quantize_c6]}}
  %0 = "scaled.quantize"(%x, %r) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<64x64xf32>, tensor<2xi64>) -> !scaled.tensor<tensor<64x64xf32>, #nv, none>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// quantize_c7
func.func @f(%x: tensor<64x64xf32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{stochastic rounding needs role grad_output, got weight [quantize_c7]}}
  %0 = "scaled.quantize"(%x, %r) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (tensor<64x64xf32>, tensor<2xi64>) -> !scaled.tensor<tensor<64x64xf32>, #nvsr, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// quantize_c8
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{new_amax needs schemes with an amax a tensor or a row, got block scales alone [quantize_c8]}}
  %0:2 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (tensor<64x64xf32>) -> (!scaled.tensor<tensor<64x64xf32>, #mx, none>, tensor<f32>)
  return
}

// -----

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
// quantize_c9
func.func @f(%x: tensor<64x64xf32>, %s: tensor<1xf32>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<1xf32> [quantize_c9]}}
  %0 = "scaled.quantize"(%x, %s) {layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<1xf32>) -> !scaled.tensor<tensor<64x64xf32>, #delayed, none>
  return
}

// -----

#nvrow = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>
// quantize_c9
func.func @f(%x: tensor<64x64xf32>, %a: tensor<f32>) {
  // expected-error @+1 {{amax must be tensor<64xf32>, got tensor<f32> [quantize_c9]}}
  %0 = "scaled.quantize"(%x, %a) {layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<64x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<64x64xf32>, #nvrow, none>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
// quantize_c9
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{new_amax must be tensor<f32>, got tensor<bf16> [quantize_c9]}}
  %0:2 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (tensor<64x64xf32>) -> (!scaled.tensor<tensor<64x64xf32>, #nv, none>, tensor<bf16>)
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// quantize_c9
func.func @f(%x: tensor<64x64xf32>, %r: tensor<i64>) {
  // expected-error @+1 {{rng must be tensor<2xi64>, got tensor<i64> [quantize_c9]}}
  %0 = "scaled.quantize"(%x, %r) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<64x64xf32>, tensor<i64>) -> !scaled.tensor<tensor<64x64xf32>, #nvsr, none>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// quantize_c9
func.func @f(%x: !torch.vtensor<[64,64],f32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{rng must be !torch.vtensor<[2],si64>, got tensor<2xi64> [quantize_c9]}}
  %0 = "scaled.quantize"(%x, %r) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (!torch.vtensor<[64,64],f32>, tensor<2xi64>) -> !scaled.tensor<tensor<64x64xf32>, #nvsr, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// narrow_c1
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{source must have both copies, got one [narrow_c1]}}
  %0 = "scaled.narrow"(%x) : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> !scaled.tensor<tensor<64x64xf32>, #mx, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mx_col = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
#block = #scaled.scheme<f8E4M3FN, "1x128", f32, {}>
// narrow_c2
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, #mx_col>) {
  // expected-error @+1 {{result must be the source with one of its copies, got !scaled.tensor<tensor<64x64xf32>, #scaled.scheme<f8E4M3FN, "1x128", f32, {}>, none> [narrow_c2]}}
  %0 = "scaled.narrow"(%x) : (!scaled.tensor<tensor<64x64xf32>, #mx, #mx_col>) -> !scaled.tensor<tensor<64x64xf32>, #block, none>
  return
}
