// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.dequantize.

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// dequantize_c1
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{usage must be one of rowwise, columnwise, got both [dequantize_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "both"} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

// dequantize_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{source must be a !scaled.tensor, got tensor<64x64xf32> [dequantize_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// dequantize_c1
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{source must have the columnwise copy, got none [dequantize_c1]}}
  %0 = "scaled.dequantize"(%x) {usage = "columnwise"} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#nvrht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor"}>
// dequantize_c2
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #nv, #nvrht>) {
  // expected-error @+1 {{the columnwise copy must be of the source's values, got transformed ones [dequantize_c2]}}
  %0 = "scaled.dequantize"(%x) {usage = "columnwise"} : (!scaled.tensor<tensor<64x64xf32>, #nv, #nvrht>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// dequantize_c3
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{result must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [dequantize_c3]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xi8>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// dequantize_c3
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{result must have shape [64,64], got [64] [dequantize_c3]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64xf32>
  return
}

// -----

#packed = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {layout = "packed", second_level = "tensor"}>
// dequantize_c4
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #packed, none>) {
  // expected-error @+1 {{the rowwise copy must be in the compact layout, got layout packed [dequantize_c4]}}
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<64x64xf32>, #packed, none>) -> tensor<64x64xf32>
  return
}
