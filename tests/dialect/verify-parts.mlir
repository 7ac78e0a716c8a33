// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.split and scaled.join.

// split_c1
func.func @f(%x: !scaled.tensor<4x64xf32, #fp8_tensor>) {
  // expected-error @+1 {{source must have a rowwise copy in FP8 with one scale per row, or with one static scale, got !scaled.tensor<4x64xf32, #fp8_tensor> [split_c1]}}
  %0:2 = scaled.split %x : !scaled.tensor<4x64xf32, #fp8_tensor> -> tensor<4x64xi8>, tensor<4x1xf32>
  return
}

// -----

// split_c1
func.func @f(%x: !scaled.tensor<4x64xf32, none, #fp8_row>) {
  // expected-error @+1 {{source must have a rowwise copy in FP8 with one scale per row, or with one static scale, got !scaled.tensor<4x64xf32, none, #fp8_row> [split_c1]}}
  %0:2 = scaled.split %x : !scaled.tensor<4x64xf32, none, #fp8_row> -> tensor<4x64xi8>, tensor<4x1xf32>
  return
}

// -----

// split_c2
func.func @f(%x: !scaled.tensor<2x?x64xf32, #fp8_row>) {
  %0:2 = scaled.split %x : !scaled.tensor<2x?x64xf32, #fp8_row> -> !torch.vtensor<[?,64],ui8>, !torch.vtensor<[?,1],f32>
  // expected-error @+1 {{codes must be tensor<?x64xi8>, got tensor<2x?x64xi8> [split_c2]}}
  %1:2 = scaled.split %x : !scaled.tensor<2x?x64xf32, #fp8_row> -> tensor<2x?x64xi8>, tensor<?x1xf32>
  return
}

// -----

// split_c2
func.func @f(%x: !scaled.tensor<4x64xf32, #fp8_row>) {
  // expected-error @+1 {{scales must be tensor<4x1xf32>, got tensor<4xf32> [split_c2]}}
  %0:2 = scaled.split %x : !scaled.tensor<4x64xf32, #fp8_row> -> tensor<4x64xi8>, tensor<4xf32>
  return
}

// -----

// join_c1
func.func @f(%codes: tensor<4x64xi8>, %scales: tensor<4x1xf32>) {
  // expected-error @+1 {{result must have a rowwise copy in FP8 with one scale per row, or with one static scale, got !scaled.tensor<4x64xf32, #mxfp8_1x32> [join_c1]}}
  %0 = scaled.join %codes, %scales : tensor<4x64xi8>, tensor<4x1xf32> -> !scaled.tensor<4x64xf32, #mxfp8_1x32>
  return
}

// -----

// join_c1
func.func @f(%codes: tensor<4x64xi8>, %scales: tensor<4x1xf32>) {
  // expected-error @+1 {{result must be a matrix with one copy, got !scaled.tensor<2x2x64xf32, #fp8_row> [join_c1]}}
  %0 = scaled.join %codes, %scales : tensor<4x64xi8>, tensor<4x1xf32> -> !scaled.tensor<2x2x64xf32, #fp8_row>
  return
}

// -----

// join_c2
func.func @f(%codes: tensor<4x64xf32>, %scales: tensor<4x1xf32>) {
  // expected-error @+1 {{codes must be tensor<4x64xi8>, got tensor<4x64xf32> [join_c2]}}
  %0 = scaled.join %codes, %scales : tensor<4x64xf32>, tensor<4x1xf32> -> !scaled.tensor<4x64xf32, #fp8_row>
  return
}

// -----

// split_c2
func.func @f(%x: !scaled.tensor<4x64xf32, #fp8_tensor_static>) {
  %0:2 = scaled.split %x : !scaled.tensor<4x64xf32, #fp8_tensor_static> -> tensor<4x64xi8>, tensor<f32>
  // expected-error @+1 {{scales must be tensor<f32>, got tensor<4x1xf32> [split_c2]}}
  %1:2 = scaled.split %x : !scaled.tensor<4x64xf32, #fp8_tensor_static> -> tensor<4x64xi8>, tensor<4x1xf32>
  return
}

// -----

// join_c2
func.func @f(%codes: tensor<4x64xi8>, %scales: tensor<4x1xf32>) {
  // expected-error @+1 {{scales must be tensor<f32>, got tensor<4x1xf32> [join_c2]}}
  %0 = scaled.join %codes, %scales : tensor<4x64xi8>, tensor<4x1xf32> -> !scaled.tensor<4x64xf32, #fp8_tensor_static>
  return
}
