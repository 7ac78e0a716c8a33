// RUN: steelyard-opt %s -p scaled-expand-scales | FileCheck %s

#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
#row_scaled = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>

// An amax that goes into the history is taken on its own.
// CHECK-LABEL: func.func @kept
// CHECK: %[[AMAX:.*]] = "scaled.amax"(%arg0) {per_row = false, rht = false}
// CHECK: %[[Q:.*]] = "scaled.quantize"(%arg0, %arg1)
// CHECK-SAME: (tensor<8x64xf32>, tensor<f32>) -> !scaled.tensor<tensor<8x64xf32>, #{{.*}}, none>
// CHECK: return %[[Q]], %[[AMAX]]
func.func @kept(%x: tensor<8x64xf32>, %scale: tensor<f32>) -> (!scaled.tensor<tensor<8x64xf32>, #delayed, none>, tensor<f32>) {
  %q, %amax = "scaled.quantize"(%x, %scale) {layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (tensor<8x64xf32>, tensor<f32>) -> (!scaled.tensor<tensor<8x64xf32>, #delayed, none>, tensor<f32>)
  return %q, %amax : !scaled.tensor<tensor<8x64xf32>, #delayed, none>, tensor<f32>
}

// CHECK-LABEL: func.func @one_for_each_row
// CHECK: "scaled.amax"(%arg0) {per_row = true, rht = false} : (tensor<8x64xf32>) -> tensor<8xf32>
func.func @one_for_each_row(%x: tensor<8x64xf32>) -> (!scaled.tensor<tensor<8x64xf32>, #row_scaled, none>, tensor<8xf32>) {
  %q, %amax = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (tensor<8x64xf32>) -> (!scaled.tensor<tensor<8x64xf32>, #row_scaled, none>, tensor<8xf32>)
  return %q, %amax : !scaled.tensor<tensor<8x64xf32>, #row_scaled, none>, tensor<8xf32>
}

// One that nobody reads costs nothing.
// CHECK-LABEL: func.func @unread
// CHECK-NOT: scaled.amax
// CHECK: return
func.func @unread(%x: tensor<8x64xf32>, %scale: tensor<f32>) -> !scaled.tensor<tensor<8x64xf32>, #delayed, none> {
  %q, %amax = "scaled.quantize"(%x, %scale) {layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (tensor<8x64xf32>, tensor<f32>) -> (!scaled.tensor<tensor<8x64xf32>, #delayed, none>, tensor<f32>)
  return %q : !scaled.tensor<tensor<8x64xf32>, #delayed, none>
}
