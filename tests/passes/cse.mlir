// RUN: steelyard-opt %s -p cse | FileCheck %s

// MLIR's own cse works on the dialect, because no op has side effects.

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#sr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>

// CHECK-LABEL: func.func @same_quantize
// CHECK-COUNT-1: "scaled.quantize"
// CHECK-NOT: "scaled.quantize"
// CHECK: return
func.func @same_quantize(%x: tensor<8x64xf32>) -> (!scaled.tensor<tensor<8x64xf32>, #nv, none>, !scaled.tensor<tensor<8x64xf32>, #nv, none>) {
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<8x64xf32>) -> !scaled.tensor<tensor<8x64xf32>, #nv, none>
  %1 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (tensor<8x64xf32>) -> !scaled.tensor<tensor<8x64xf32>, #nv, none>
  return %0, %1 : !scaled.tensor<tensor<8x64xf32>, #nv, none>, !scaled.tensor<tensor<8x64xf32>, #nv, none>
}

// Random bits are operands: the same bits merge, other bits do not.
// CHECK-LABEL: func.func @random_bits
// CHECK-COUNT-2: "scaled.quantize"
// CHECK-NOT: "scaled.quantize"
// CHECK: return
func.func @random_bits(%x: tensor<8x64xf32>, %rng: tensor<2xi64>) -> (!scaled.tensor<tensor<8x64xf32>, #sr, none>, !scaled.tensor<tensor<8x64xf32>, #sr, none>, !scaled.tensor<tensor<8x64xf32>, #sr, none>) {
  %next = "scaled.advance_rng"(%rng) : (tensor<2xi64>) -> tensor<2xi64>
  %0 = "scaled.quantize"(%x, %rng) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<8x64xf32>, tensor<2xi64>) -> !scaled.tensor<tensor<8x64xf32>, #sr, none>
  %1 = "scaled.quantize"(%x, %rng) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<8x64xf32>, tensor<2xi64>) -> !scaled.tensor<tensor<8x64xf32>, #sr, none>
  %2 = "scaled.quantize"(%x, %next) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (tensor<8x64xf32>, tensor<2xi64>) -> !scaled.tensor<tensor<8x64xf32>, #sr, none>
  return %0, %1, %2 : !scaled.tensor<tensor<8x64xf32>, #sr, none>, !scaled.tensor<tensor<8x64xf32>, #sr, none>, !scaled.tensor<tensor<8x64xf32>, #sr, none>
}
