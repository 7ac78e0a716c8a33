// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p 'scaled-apply-recipe{recipe=fp8-delayed},scaled-insert-quantize' | FileCheck %s
// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p 'scaled-apply-recipe{recipe=nvfp4},scaled-insert-quantize' | FileCheck %s --check-prefix=RANDOM

// A loop of three layers and its backward. The scales are stacked, [3], and so are the amaxes that the bodies return.
// Each is updated once, in the function with the loops: those of inputs and weights come from the forward's body alone.
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<3xf32> {scaled.state = "layer.input.scale"}
// CHECK-SAME: tensor<3xf32> {scaled.state = "layer.weight.scale"}
// CHECK-SAME: tensor<3xf32> {scaled.state = "layer.grad_output.scale"}
// CHECK: %[[FORWARD:.*]]:3 = "test.loop"(%arg0, %arg1, %[[XS:.*]], %[[WS:.*]]) {{.*}} -> (tensor<16x64xf32>, tensor<3xf32>, tensor<3xf32>)
// CHECK: %[[BACKWARD:.*]]:2 = "test.loop"(%arg2, %arg1, %[[GS:.*]], %[[WS]]) {{.*}} -> (tensor<16x64xf32>, tensor<3xf32>)
// CHECK: scaled.update_scale %[[XS]], %{{.*}}, %[[FORWARD]]#1
// CHECK: scaled.update_scale %[[WS]], %{{.*}}, %[[FORWARD]]#2
// CHECK: scaled.update_scale %[[GS]], %{{.*}}, %[[BACKWARD]]#1
// CHECK-LABEL: func.func private @forward_body
// CHECK-SAME: -> (tensor<16x64xf32>, tensor<f32> {scaled.state = "layer.input.amax"}, tensor<f32> {scaled.state = "layer.weight.amax"})
// CHECK-NOT: scaled.update_scale
// CHECK-LABEL: func.func private @backward_body
// CHECK-SAME: -> (tensor<16x64xf32>, tensor<f32> {scaled.state = "layer.grad_output.amax"})

// Random bits are one state, which each trip splits.
// RANDOM-LABEL: func.func @main
// RANDOM-SAME: tensor<2xi64> {scaled.state = "rng"}
// RANDOM: "test.loop"(%arg2, %arg1, %[[RNG:arg[0-9]+]])
// RANDOM: scaled.advance_rng
// RANDOM-LABEL: func.func private @backward_body
// RANDOM-SAME: tensor<2xi64> {scaled.state = "rng"})
func.func @main(%x: tensor<16x64xf32>, %w: tensor<3x64x64xf32> {scaled.parameter = "layer.kernel"}, %dy: tensor<16x64xf32> {scaled.tangent}) -> (tensor<16x64xf32>, tensor<16x64xf32>) {
  %y = "test.loop"(%x, %w) {scaled.bodies = [@forward_body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x64x64xf32>) -> tensor<16x64xf32>
  %dx = "test.loop"(%dy, %w) {scaled.bodies = [@backward_body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x64x64xf32>) -> tensor<16x64xf32>
  return %y, %dx : tensor<16x64xf32>, tensor<16x64xf32>
}
func.func private @forward_body(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> attributes {scaled.trained} {
  %y = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @backward_body(%dy: tensor<16x64xf32> {scaled.tangent}, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %dx = scaled.matmul dgrad %dy, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %dx : tensor<16x64xf32>
}

// -----

// The branches of an op share its operands; one that quantizes nothing has none of them.
// CHECK-LABEL: func.func @branches
// CHECK: "test.branch"(%arg0, %arg1, %{{.*}}, %{{.*}}) {scaled.bodies = [@one, @other]}
// CHECK-LABEL: func.func private @other
// CHECK-NOT: scaled.state
func.func @branches(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %y = "test.branch"(%x, %w) {scaled.bodies = [@one, @other]} : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @one(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %y = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @other(%x: tensor<16x64xf32>, %w: tensor<64x64xf32>) -> tensor<16x64xf32> {
  return %x : tensor<16x64xf32>
}

// -----

// Of a loop in a loop the state is stacked for both.
// CHECK-LABEL: func.func @loop_in_loop
// CHECK-SAME: tensor<2x3xf32> {scaled.state = "layer.input.scale"}
// CHECK: "test.loop"(%arg0, %arg1, %[[SCALE:.*]], %{{.*}}) {{.*}} -> (tensor<16x64xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
// CHECK: scaled.update_scale %[[SCALE]], {{.*}} : tensor<2x3xf32>, tensor<1024x2x3xf32>
// CHECK-LABEL: func.func private @outer
// CHECK: "test.loop"(%arg0, %arg1, %{{.*}}, %{{.*}}) {{.*}} -> (tensor<16x64xf32>, tensor<3xf32>, tensor<3xf32>)
func.func @loop_in_loop(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}, %dy: tensor<16x64xf32> {scaled.tangent}) -> tensor<16x64xf32> {
  %y = "test.loop"(%x, %w) {scaled.bodies = [@outer], scaled.trips = 2 : i64} : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @outer(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> attributes {scaled.trained} {
  %y = "test.loop"(%x, %w) {scaled.bodies = [@inner], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @inner(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> attributes {scaled.trained} {
  %y = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}

// -----

// A layer that runs in a loop and outside of it has a state for each place.
// CHECK-LABEL: func.func @two_places
// CHECK-SAME: %[[STACK:arg[0-9]+]]: tensor<3xf32> {scaled.state = "layer.loop3.input.scale"}
// CHECK-SAME: %[[SCALE:arg[0-9]+]]: tensor<f32> {scaled.state = "layer.input.scale"}
// CHECK: "test.loop"(%arg0, %arg1, %[[STACK]], %{{.*}})
// CHECK: scaled.quantize input %arg0 scale(%[[SCALE]])
// CHECK-LABEL: func.func private @two_places_body
// CHECK-SAME: tensor<f32> {scaled.state = "layer.loop3.input.scale"}
func.func @two_places(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> (tensor<16x64xf32>, tensor<16x64xf32>) {
  %y = "test.loop"(%x, %w) {scaled.bodies = [@two_places_body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %z = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y, %z : tensor<16x64xf32>, tensor<16x64xf32>
}
func.func private @two_places_body(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %y = scaled.matmul fprop %x, %w at "layer" : tensor<16x64xf32>, tensor<64x64xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
