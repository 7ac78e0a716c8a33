// RUN: steelyard-opt %s -p scaled-expand-scales | FileCheck %s

// An amax that goes into the history is taken on its own.
// CHECK-LABEL: func.func @kept
// CHECK: %[[AMAX:.*]] = scaled.amax %arg0 :
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %arg0 scale(%arg1)
// CHECK-SAME: : tensor<8x64xf32>, tensor<f32> -> !scaled.tensor<8x64xf32, #{{.*}}>
// CHECK: return %[[Q]], %[[AMAX]]
func.func @kept(%x: tensor<8x64xf32>, %scale: tensor<f32>) -> (!scaled.tensor<8x64xf32, #fp8_tensor_delayed>, tensor<f32>) {
  %q, %amax = scaled.quantize input %x scale(%scale) at "up" : tensor<8x64xf32>, tensor<f32> -> !scaled.tensor<8x64xf32, #fp8_tensor_delayed>, tensor<f32>
  return %q, %amax : !scaled.tensor<8x64xf32, #fp8_tensor_delayed>, tensor<f32>
}

// CHECK-LABEL: func.func @one_for_each_row
// CHECK: scaled.amax %arg0 per_row : {{.*}} -> tensor<8xf32>
func.func @one_for_each_row(%x: tensor<8x64xf32>) -> (!scaled.tensor<8x64xf32, #nvfp4_1x16_per_row>, tensor<8xf32>) {
  %q, %amax = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #nvfp4_1x16_per_row>, tensor<8xf32>
  return %q, %amax : !scaled.tensor<8x64xf32, #nvfp4_1x16_per_row>, tensor<8xf32>
}

// Those of groups are a part of the copies.
// CHECK-LABEL: func.func @groups
// CHECK-NOT: scaled.amax
// CHECK: %[[Q:.*]]:2 = scaled.quantize input %arg0 ends(%arg2) scale(%arg1)
// CHECK: return %[[Q]]#1
func.func @groups(%x: tensor<8x64xf32>, %scale: tensor<4xf32>, %ends: tensor<4xi32>) -> tensor<4xf32> {
  %q, %amax = scaled.quantize input %x ends(%ends) scale(%scale) at "up" : tensor<8x64xf32>, tensor<4xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, #fp8_tensor_delayed>, tensor<4xf32>
  return %amax : tensor<4xf32>
}

// One that nobody reads costs nothing.
// CHECK-LABEL: func.func @unread
// CHECK-NOT: scaled.amax
// CHECK: return
func.func @unread(%x: tensor<8x64xf32>, %scale: tensor<f32>) -> !scaled.tensor<8x64xf32, #fp8_tensor_delayed> {
  %q, %amax = scaled.quantize input %x scale(%scale) at "up" : tensor<8x64xf32>, tensor<f32> -> !scaled.tensor<8x64xf32, #fp8_tensor_delayed>, tensor<f32>
  return %q : !scaled.tensor<8x64xf32, #fp8_tensor_delayed>
}
