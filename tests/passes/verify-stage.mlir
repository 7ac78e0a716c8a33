// RUN: steelyard-opt %s -p 'scaled-verify-stage{stage=raised}' --split-input-file --verify-diagnostics
// RUN: not steelyard-opt %s -p 'scaled-verify-stage{stage=boiled}' 2>&1 | FileCheck %s --check-prefix=STAGE
// STAGE: stage must be one of traced, raised, quantized, fused, partitioned, lowered, got 'boiled'

func.func @holds(%x: tensor<8x64xf32>, %w: tensor<48x64xf32> {scaled.parameter = "up.weight"}, %dy: tensor<8x48xf32> {scaled.tangent}) -> (tensor<8x48xf32> {scaled.gradient = "x"}) {
  %y = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0>, scaled.high_precision = "a reason"} : (tensor<8x64xf32>, tensor<48x64xf32>) -> tensor<8x48xf32>
  return %y : tensor<8x48xf32>
}

// -----

func.func @op_of_another_stage(%x: tensor<8x64xf32>) -> tensor<f32> {
  // expected-error @+1 {{must not be in a raised module, whose ops are: scaled.grouped_matmul, scaled.matmul [stage_c1]}}
  %0 = "scaled.amax"(%x) {per_row = false, rht = false} : (tensor<8x64xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error @+1 {{has the attribute 'scaled.parmeter', which is none of the contract's}}
func.func @unknown(%w: tensor<48x64xf32> {scaled.parmeter = "up.weight"}) {
  return
}

// -----

// expected-error @+1 {{attribute 'scaled.parameter' must stand on argument, got one on function of func.func [stage_c4]}}
func.func @misplaced() attributes {scaled.parameter = "up.weight"} {
  return
}

// -----

// expected-error @+1 {{attribute 'scaled.parameter' must be a string, got 3 : i64 [stage_c5]}}
func.func @of_another_kind(%w: tensor<48x64xf32> {scaled.parameter = 3 : i64}) {
  return
}

// -----

// expected-error @+1 {{attribute 'scaled.arena' must be gone in a raised module: it belongs to lowered [stage_c6]}}
func.func @of_another_stage() attributes {scaled.arena = 64 : i64} {
  return
}
