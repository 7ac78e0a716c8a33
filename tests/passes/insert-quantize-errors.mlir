// RUN: not steelyard-opt %s -p scaled-insert-quantize 2>&1 | FileCheck %s --check-prefix=SETTINGS

func.func @no_settings(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32> {scaled.tangent}) -> tensor<8x48xf32> {
  // SETTINGS: 'scaled.matmul' op must have the attribute 'scaled.delayed', which says how a delayed scale is updated
  %y = scaled.matmul fprop %x, %w at "mlp.up" {lhs_scheme = #fp8_tensor_delayed, rhs_scheme = #fp8_tensor_delayed} : tensor<8x64xf32>, tensor<48x64xf32> -> tensor<8x48xf32>
  return %y : tensor<8x48xf32>
}
