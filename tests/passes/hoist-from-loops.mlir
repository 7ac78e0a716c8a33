// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p 'scaled-hoist-from-loops' | FileCheck %s
// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p 'scaled-hoist-from-loops,scaled-pack-weights{target=cpu}' | FileCheck %s --check-prefix=PACKED

// The part of a parameter that each trip quantizes is quantized before the loop, for all trips.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[WS:arg[0-9]+]]: !scaled.tensor<3x64x64xf32 in 3, #mxfp8_1x32> {scaled.parameter = "layer.kernel", scaled.sources = array<i64: 1>, scaled.trips = 3 : i64, scaled.weight = @weight_2}
// CHECK: "test.loop"(%arg0, %arg1, %[[WS]])
// CHECK-LABEL: func.func private @body
// CHECK-SAME: %[[W:arg[0-9]+]]: !scaled.tensor<64x64xf32, #mxfp8_1x32> {scaled.weight = @weight_2}
// CHECK: %[[X:.*]] = scaled.quantize input
// CHECK-NOT: scaled.quantize
// CHECK: scaled.gemm fprop %[[X]], %[[W]]
// CHECK-LABEL: func.func private @weight_2(%arg0: tensor<64x64xf32>
// CHECK: scaled.quantize weight
func.func @main(%x: tensor<16x64xf32>, %w: tensor<3x64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %y = "test.loop"(%x, %w) {scaled.bodies = [@body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x64x64xf32>) -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
func.func private @body(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> tensor<16x64xf32> {
  %0 = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #mxfp8_1x32>
  %1 = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = scaled.quantize weight %1 : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %0, %2 at "layer" : !scaled.tensor<16x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}

// -----

// Loops in loops: a stack for the trips of both, of which the outer body hands on its part.
// CHECK-LABEL: func.func @nested
// CHECK-SAME: %[[WS:arg[0-9]+]]: !scaled.tensor<2x3x64x64xf32 in 6, #mxfp8_1x32> {scaled.parameter = "layer.kernel", scaled.sources = array<i64: 0>, scaled.trips = 6 : i64, scaled.weight = @weight_3}
// CHECK: "test.loop"(%arg0, %[[WS]])
// CHECK-LABEL: func.func private @three
// CHECK-SAME: %[[W:arg[0-9]+]]: !scaled.tensor<3x64x64xf32 in 3, #mxfp8_1x32> {scaled.weight = @weight_3}
// CHECK: "test.loop"(%arg0, %[[W]])
// CHECK-LABEL: func.func private @one
// CHECK-SAME: %[[OWN:arg[0-9]+]]: !scaled.tensor<64x64xf32, #mxfp8_1x32> {scaled.weight = @weight_3}
// CHECK-NOT: scaled.quantize
// CHECK: "test.read"(%[[OWN]])
func.func @nested(%w: tensor<2x3x64x64xf32> {scaled.parameter = "layer.kernel"}) {
  "test.loop"(%w) {scaled.bodies = [@three], scaled.trips = 2 : i64} : (tensor<2x3x64x64xf32>) -> ()
  return
}
func.func private @three(%w: tensor<3x64x64xf32> {scaled.parameter = "layer.kernel"}) {
  "test.loop"(%w) {scaled.bodies = [@one], scaled.trips = 3 : i64} : (tensor<3x64x64xf32>) -> ()
  return
}
func.func private @one(%w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) {
  %q = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  "test.read"(%q) : (!scaled.tensor<64x64xf32, #mxfp8_1x32>) -> ()
  return
}

// -----

// What is hoisted is packed as other weights are: one trip's matrix by its function, and every stack has that layout.
// PACKED-LABEL: func.func @packed
// PACKED-SAME: !scaled.tensor<2x3x64x64xf32 in 6, #[[PACKED:nvfp4_16x16_packed]]>
// PACKED-LABEL: func.func private @three
// PACKED-SAME: !scaled.tensor<3x64x64xf32 in 3, #[[PACKED]]>
// PACKED-LABEL: func.func private @one
// PACKED-SAME: !scaled.tensor<64x64xf32, #[[PACKED]]>
// PACKED: func.func private @weight_3
// PACKED: scaled.pack %{{.*}} : !scaled.tensor<64x64xf32, #nvfp4_16x16>
func.func @packed(%x: tensor<16x64xf32>, %w: tensor<2x3x64x64xf32> {scaled.parameter = "layer.kernel"}) {
  "test.loop"(%x, %w) {scaled.bodies = [@three], scaled.trips = 2 : i64} : (tensor<16x64xf32>, tensor<2x3x64x64xf32>) -> ()
  return
}
func.func private @three(%x: tensor<16x64xf32>, %w: tensor<3x64x64xf32> {scaled.parameter = "layer.kernel"}) {
  "test.loop"(%x, %w) {scaled.bodies = [@one], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x64x64xf32>) -> ()
  return
}
func.func private @one(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) {
  %0 = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #nvfp4_1x16>
  %1 = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_16x16>
  %y = scaled.gemm fprop %0, %1 at "layer" : !scaled.tensor<16x64xf32, #nvfp4_1x16>, !scaled.tensor<64x64xf32, #nvfp4_16x16> -> tensor<16x64xf32>
  "test.read"(%y) : (tensor<16x64xf32>) -> ()
  return
}
