// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.transpose.

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// transpose_c1
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #tensor, #tensor>) {
  // expected-error @+1 {{source must have exactly one copy, got both [transpose_c1]}}
  %0 = "scaled.transpose"(%x) {} : (!scaled.tensor<tensor<64x64xf32>, #tensor, #tensor>) -> !scaled.tensor<tensor<64x64xf32>, #tensor, none>
  return
}

// -----

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// transpose_c1
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{source must be a !scaled.tensor, got tensor<64x64xf32> [transpose_c1]}}
  %0 = "scaled.transpose"(%x) {} : (tensor<64x64xf32>) -> !scaled.tensor<tensor<64x64xf32>, #tensor, none>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// transpose_c2
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{the scales of 1x32 blocks serve one usage only; quantize the other copy from the source [transpose_c2]}}
  %0 = "scaled.transpose"(%x) {} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>) -> !scaled.tensor<tensor<64x64xf32>, none, #mxc>
  return
}

// -----

#mxg = #scaled.scheme<f8E4M3FN, "32x32", f8E8M0FNU, {layout = "gemm"}>
// transpose_c3
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #mxg, none>) {
  // expected-error @+1 {{scales must be in the compact layout, got gemm [transpose_c3]}}
  %0 = "scaled.transpose"(%x) {} : (!scaled.tensor<tensor<64x64xf32>, #mxg, none>) -> !scaled.tensor<tensor<64x64xf32>, none, #mxg>
  return
}

// -----

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// transpose_c4
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #tensor, none>) {
  // expected-error @+1 {{result must be the source with its one copy columnwise, got !scaled.tensor<tensor<64x64xf32>, #scaled.scheme<f8E4M3FN, "tensor", f32, {}>, none> [transpose_c4]}}
  %0 = "scaled.transpose"(%x) {} : (!scaled.tensor<tensor<64x64xf32>, #tensor, none>) -> !scaled.tensor<tensor<64x64xf32>, #tensor, none>
  return
}

// -----

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// transpose_c4
func.func @f(%x: !scaled.tensor<tensor<64x64xf32>, #tensor, none>) {
  // expected-error @+1 {{result must be the source with its one copy columnwise, got !scaled.tensor<tensor<64x32xf32>, none, #scaled.scheme<f8E4M3FN, "tensor", f32, {}>> [transpose_c4]}}
  %0 = "scaled.transpose"(%x) {} : (!scaled.tensor<tensor<64x64xf32>, #tensor, none>) -> !scaled.tensor<tensor<64x32xf32>, none, #tensor>
  return
}
