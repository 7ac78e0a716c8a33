// RUN: not steelyard-opt %s -p scaled-insert-quantize 2>&1 | FileCheck %s --check-prefix=SETTINGS

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
func.func @no_settings(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32> {scaled.tangent}) -> tensor<8x48xf32> {
  // SETTINGS: 'scaled.matmul' op must have the attribute 'scaled.delayed', which says how a delayed scale is updated
  %y = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up", lhs_scheme = #delayed, operandSegmentSizes = array<i32: 1, 1, 0>, rhs_scheme = #delayed} : (tensor<8x64xf32>, tensor<48x64xf32>) -> tensor<8x48xf32>
  return %y : tensor<8x48xf32>
}
