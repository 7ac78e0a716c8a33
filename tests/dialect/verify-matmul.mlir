// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.matmul.

// matmul_c0
func.func @f(%a: tensor<4x8xf32>, %b: tensor<6x8xf32>) {
  // expected-error @+1 {{'scaled.matmul' op requires attribute 'kind' [matmul_c0]}}
  %0 = "scaled.matmul"(%a, %b) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return
}

// -----

// matmul_c1
func.func @f(%a: tensor<4x8xf32>, %b: tensor<6x8xf32>) {
  // expected-error @+1 {{kind must be one of fprop, dgrad, wgrad, got forward [matmul_c1]}}
  %0 = scaled.matmul forward %a, %b : tensor<4x8xf32>, tensor<6x8xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c2
func.func @f(%a: tensor<4x8xi32>, %b: tensor<6x8xi32>) {
  // expected-error @+1 {{lhs must be a ranked tensor of f32, bf16, f16, got tensor<4x8xi32> [matmul_c2]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xi32>, tensor<6x8xi32> -> tensor<4x6xi32>
  return
}

// -----

// matmul_c2
func.func @f(%a: tensor<4x8xf32>, %b: tensor<*xf32>) {
  // expected-error @+1 {{rhs must be a ranked tensor of f32, bf16, f16, got tensor<*xf32> [matmul_c2]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xf32>, tensor<*xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c2
func.func @f(%a: tensor<4x8xf32>, %b: !torch.vtensor<[6,8],f32>) {
  // expected-error @+1 {{lhs, rhs and result must all be builtin or all torch tensors, got tensor<4x8xf32>, !torch.vtensor<[6,8],f32> and tensor<4x6xf32> [matmul_c2]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xf32>, !torch.vtensor<[6,8],f32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c3
func.func @f(%a: tensor<4x8xbf16>, %b: tensor<6x8xf32>) {
  // expected-error @+1 {{lhs and rhs must have one dtype, got bf16 and f32 [matmul_c3]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xbf16>, tensor<6x8xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c4
func.func @f(%a: tensor<4x8xf32>, %b: tensor<6x8xf32>) {
  // expected-error @+1 {{batch_dims must not be negative, got -1 [matmul_c4]}}
  %0 = scaled.matmul fprop %a, %b batch_dims(-1) : tensor<4x8xf32>, tensor<6x8xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c4
func.func @f(%a: tensor<4x8xf32>, %b: tensor<4x4x6x8xf32>) {
  // expected-error @+1 {{lhs must have more than 2 dims, got [4,8] [matmul_c4]}}
  %0 = scaled.matmul fprop %a, %b batch_dims(2) : tensor<4x8xf32>, tensor<4x4x6x8xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c4
func.func @f(%a: tensor<4x8xf32>, %b: tensor<2x6x8xf32>) {
  // expected-error @+1 {{rhs of fprop must have 2 dims, got [2,6,8] [matmul_c4]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xf32>, tensor<2x6x8xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c4
func.func @f(%a: tensor<2x4x6xf32>, %b: tensor<4x8xf32>) {
  // expected-error @+1 {{rhs of wgrad must have as many dims as lhs, got [4,8] [matmul_c4]}}
  %0 = scaled.matmul wgrad %a, %b : tensor<2x4x6xf32>, tensor<4x8xf32> -> tensor<6x8xf32>
  return
}

// -----

// matmul_c5
func.func @f(%a: tensor<2x4x8xf32>, %b: tensor<3x6x8xf32>) {
  // expected-error @+1 {{batch dims of lhs and rhs must agree, got [2] and [3] [matmul_c5]}}
  %0 = scaled.matmul fprop %a, %b batch_dims(1) : tensor<2x4x8xf32>, tensor<3x6x8xf32> -> tensor<2x4x6xf32>
  return
}

// -----

// matmul_c6
func.func @f(%a: tensor<4x8xf32>, %b: tensor<6x9xf32>) {
  // expected-error @+1 {{the dims that fprop reduces over must agree, got [8] and [9] [matmul_c6]}}
  %0 = scaled.matmul fprop %a, %b : tensor<4x8xf32>, tensor<6x9xf32> -> tensor<4x6xf32>
  return
}

// -----

// matmul_c6
func.func @f(%a: tensor<4x6xf32>, %b: tensor<7x8xf32>) {
  // expected-error @+1 {{the dims that dgrad reduces over must agree, got [6] and [7] [matmul_c6]}}
  %0 = scaled.matmul dgrad %a, %b : tensor<4x6xf32>, tensor<7x8xf32> -> tensor<4x8xf32>
  return
}

// -----

// matmul_c6
func.func @f(%a: tensor<2x?x6xf32>, %b: tensor<3x4x8xf32>) {
  // expected-error @+1 {{the dims that wgrad reduces over must agree, got [2,?] and [3,4] [matmul_c6]}}
  %0 = scaled.matmul wgrad %a, %b : tensor<2x?x6xf32>, tensor<3x4x8xf32> -> tensor<6x8xf32>
  return
}

// -----

// matmul_c7
func.func @f(%a: tensor<?x8xf32>, %b: tensor<6x8xf32>) {
  // expected-error @+1 {{the result must have shape [?,6], got [4,7] [matmul_c7]}}
  %0 = scaled.matmul fprop %a, %b : tensor<?x8xf32>, tensor<6x8xf32> -> tensor<4x7xf32>
  return
}

// -----

// matmul_c8
func.func @f(%a: tensor<4x6xf32>, %b: tensor<6x8xf32>, %c: tensor<8xf32>) {
  // expected-error @+1 {{only fprop takes a bias, got kind dgrad [matmul_c8]}}
  %0 = scaled.matmul dgrad %a, %b bias(%c) : tensor<4x6xf32>, tensor<6x8xf32>, tensor<8xf32> -> tensor<4x8xf32>
  return
}

// -----

// matmul_c8
func.func @f(%a: tensor<4x8xf32>, %b: tensor<6x8xf32>, %c: tensor<5xf32>) {
  // expected-error @+1 {{bias must have shape [6], got tensor<5xf32> [matmul_c8]}}
  %0 = scaled.matmul fprop %a, %b bias(%c) : tensor<4x8xf32>, tensor<6x8xf32>, tensor<5xf32> -> tensor<4x6xf32>
  return
}

// -----

// The generic form states how many operands each group has.
func.func @segments(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>) -> tensor<8x48xf32> {
  // expected-error @+1 {{operandSegmentSizes must add up to 2 in its groups, got [2, 0, 0] [matmul_c0] (layer 'up')}}
  %0 = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 2, 0, 0>} : (tensor<8x64xf32>, tensor<48x64xf32>) -> tensor<8x48xf32>
  return %0 : tensor<8x48xf32>
}
