// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.grouped_matmul and scaled.grouped_gemm.

// grouped_matmul_c0
func.func @f(%x: tensor<9x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{'scaled.grouped_matmul' op requires attribute 'kind' [grouped_matmul_c0]}}
  %0 = "scaled.grouped_matmul"(%x, %w, %e) {} : (tensor<9x8xf32>, tensor<2x6x8xf32>, tensor<2xi32>) -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c1
func.func @f(%x: tensor<9x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{kind must be one of fprop, dgrad, wgrad, got forward [grouped_matmul_c1]}}
  %0 = scaled.grouped_matmul forward %x, %w ends(%e) : tensor<9x8xf32>, tensor<2x6x8xf32>, tensor<2xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c2
func.func @f(%x: tensor<9x8xi8>, %w: tensor<2x6x8xi8>, %e: tensor<2xi32>) {
  // expected-error @+1 {{lhs must be a ranked tensor of f32, bf16, f16, got tensor<9x8xi8> [grouped_matmul_c2]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xi8>, tensor<2x6x8xi8>, tensor<2xi32> -> tensor<9x6xi8>
  return
}

// -----

// grouped_matmul_c2
func.func @f(%x: tensor<9x8xf32>, %w: !torch.vtensor<[2,6,8],f32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{must all be builtin or all torch tensors}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xf32>, !torch.vtensor<[2,6,8],f32>, tensor<2xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c3
func.func @f(%x: tensor<9x8xf32>, %w: tensor<2x6x8xbf16>, %e: tensor<2xi32>) {
  // expected-error @+1 {{lhs and rhs must have one dtype, got f32 and bf16 [grouped_matmul_c3]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xf32>, tensor<2x6x8xbf16>, tensor<2xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c4
func.func @f(%x: tensor<3x3x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{lhs must be a matrix, got [3,3,8] [grouped_matmul_c4]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<3x3x8xf32>, tensor<2x6x8xf32>, tensor<2xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c4
func.func @f(%x: tensor<9x8xf32>, %w: tensor<3x6x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{rhs of fprop must be a stack of 2 matrices, one per group, got [3,6,8] [grouped_matmul_c4]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xf32>, tensor<3x6x8xf32>, tensor<2xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c4
func.func @f(%dy: tensor<9x6xf32>, %x: tensor<2x9x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{rhs of wgrad must be a matrix, got [2,9,8] [grouped_matmul_c4]}}
  %0 = scaled.grouped_matmul wgrad %dy, %x ends(%e) : tensor<9x6xf32>, tensor<2x9x8xf32>, tensor<2xi32> -> tensor<2x6x8xf32>
  return
}

// -----

// grouped_matmul_c5
func.func @f(%dy: tensor<9x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{the dims that dgrad reduces over must agree, got [8] and [6] [grouped_matmul_c5]}}
  %0 = scaled.grouped_matmul dgrad %dy, %w ends(%e) : tensor<9x8xf32>, tensor<2x6x8xf32>, tensor<2xi32> -> tensor<9x8xf32>
  return
}

// -----

// grouped_matmul_c6
func.func @f(%x: tensor<9x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<2xi64>) {
  // expected-error @+1 {{ends must be tensor<?xi32>, got tensor<2xi64> [grouped_matmul_c6]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xf32>, tensor<2x6x8xf32>, tensor<2xi64> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c6
func.func @f(%x: tensor<9x8xf32>, %w: tensor<2x6x8xf32>, %e: tensor<?xi32>) {
  // expected-error @+1 {{ends must be of a known number of groups, at least one, got tensor<?xi32> [grouped_matmul_c6]}}
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) : tensor<9x8xf32>, tensor<2x6x8xf32>, tensor<?xi32> -> tensor<9x6xf32>
  return
}

// -----

// grouped_matmul_c7
func.func @f(%dy: tensor<9x6xf32>, %x: tensor<9x8xf32>, %e: tensor<2xi32>) {
  // expected-error @+1 {{the result must have shape [2,6,8], got [6,8] [grouped_matmul_c7]}}
  %0 = scaled.grouped_matmul wgrad %dy, %x ends(%e) : tensor<9x6xf32>, tensor<9x8xf32>, tensor<2xi32> -> tensor<6x8xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
!weights = !scaled.tensor<2x48x64xf32 in 2, #mxfp8_1x32>
// grouped_gemm_c0
func.func @f(%x: !rows, %w: !weights, %e: tensor<2xi32>) {
  // expected-error @+1 {{'scaled.grouped_gemm' op requires attribute 'kind' [grouped_gemm_c0]}}
  %0 = "scaled.grouped_gemm"(%x, %w, %e) {} : (!rows, !weights, tensor<2xi32>) -> tensor<9x48xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
!weights = !scaled.tensor<2x48x64xf32 in 2, #mxfp8_1x32>
// grouped_gemm_c1
func.func @f(%x: !rows, %w: !weights, %e: tensor<2xi32>) {
  // expected-error @+1 {{kind must be one of fprop, dgrad, wgrad, got forward [grouped_gemm_c1]}}
  %0 = scaled.grouped_gemm forward %x, %w ends(%e) : !rows, !weights, tensor<2xi32> -> tensor<9x48xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, none, #mxfp8_32x1>
// grouped_gemm_c2
func.func @f(%dy: tensor<9x48xf32>, %x: !rows, %e: tensor<2xi32>) {
  // expected-error @+1 {{lhs of wgrad must be a !scaled.tensor, got tensor<9x48xf32> [grouped_gemm_c2]}}
  %0 = scaled.grouped_gemm wgrad %dy, %x ends(%e) : tensor<9x48xf32>, !rows, tensor<2xi32> -> tensor<2x48x64xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
!weights = !scaled.tensor<2x48x64xf32, #mxfp8_1x32>
// grouped_gemm_c3
func.func @f(%x: !rows, %w: !weights, %e: tensor<2xi32>) {
  // expected-error @+1 {{rhs must be in 2 groups, as many as there are ends, got 0 [grouped_gemm_c3]}}
  %0 = scaled.grouped_gemm fprop %x, %w ends(%e) : !rows, !weights, tensor<2xi32> -> tensor<9x48xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
// grouped_gemm_c4
func.func @f(%x: !rows, %w: !rows, %e: tensor<2xi32>) {
  // expected-error @+1 {{rhs of fprop must be a stack of 2 matrices, one per group, got [9,64] [grouped_gemm_c4]}}
  %0 = scaled.grouped_gemm fprop %x, %w ends(%e) : !rows, !rows, tensor<2xi32> -> tensor<9x48xf32>
  return
}

// -----

!rows = !scaled.tensor<9x32xf32 in 2, #mxfp8_1x32>
!weights = !scaled.tensor<2x48x64xf32 in 2, #mxfp8_1x32>
// grouped_gemm_c5
func.func @f(%x: !rows, %w: !weights, %e: tensor<2xi32>) {
  // expected-error @+1 {{the dims that fprop reduces over must agree, got [32] and [64] [grouped_gemm_c5]}}
  %0 = scaled.grouped_gemm fprop %x, %w ends(%e) : !rows, !weights, tensor<2xi32> -> tensor<9x48xf32>
  return
}

// -----

!rows = !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
!weights = !scaled.tensor<2x48x64xf32 in 2, #mxfp8_1x32>
// grouped_gemm_c6
func.func @f(%x: !rows, %w: !weights, %e: tensor<2xi32>) {
  // expected-error @+1 {{the result must have shape [9,48], got [9,64] [grouped_gemm_c6]}}
  %0 = scaled.grouped_gemm fprop %x, %w ends(%e) : !rows, !weights, tensor<2xi32> -> tensor<9x64xf32>
  return
}
