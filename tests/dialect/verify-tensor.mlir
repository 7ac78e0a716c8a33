// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of !scaled.tensor; each op that has one checks them.

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// tensor_c1
func.func @f(%x: !scaled.tensor<tensor<*xf32>, #mx, none>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<*xf32> [tensor_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<*xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// tensor_c1
func.func @f(%x: !scaled.tensor<tensor<64x64xi8>, #mx, none>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [tensor_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xi8>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// tensor_c1
func.func @f(%x: !scaled.tensor<tensor<f32>, #mx, none>) {
  // expected-error @+1 {{a !scaled.tensor must stand for a ranked tensor of f32, bf16, f16, got tensor<f32> [tensor_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<f32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// tensor_c2
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, unit, #mxc>) {
  // expected-error @+1 {{row must be a #scaled.scheme or none, got unit [tensor_c2]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, unit, #mxc>) -> tensor<64x64xf32>
  return
}

// -----

// tensor_c2
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, none, none>) {
  // expected-error @+1 {{a !scaled.tensor must have a rowwise or a columnwise copy, got none [tensor_c2]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, none, none>) -> tensor<64x64xf32>
  return
}

// -----

#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// tensor_c3
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mxc, none>) {
  // expected-error @+1 {{32x1 blocks must be columnwise, got them rowwise [tensor_c3]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, #mxc, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// tensor_c3
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, none, #mx>) {
  // expected-error @+1 {{1x32 blocks must be rowwise, got them columnwise [tensor_c3]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, none, #mx>) -> tensor<64x64xf32>
  return
}

// -----

#nvrht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor"}>
// tensor_c4
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #nvrht, none>) {
  // expected-error @+1 {{the random Hadamard transform must be columnwise, got it rowwise [tensor_c4]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, #nvrht, none>) -> tensor<64x64xf32>
  return
}

// -----

#nvrow = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>
// tensor_c5
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, none, #nvrow>) {
  // expected-error @+1 {{a second level per row must be rowwise, got it columnwise [tensor_c5]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, none, #nvrow>) -> tensor<64x64xf32>
  return
}
