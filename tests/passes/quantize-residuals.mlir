// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p scaled-quantize-residuals | FileCheck %s

// The input of each trip is kept as the backward reads it, made by one quantization for both. The other residual, which
// the backward multiplies by, stays as it is.
// CHECK-LABEL: func.func @main
// CHECK: %[[KEPT:.*]]:3 = "test.loop"(%arg0, %arg1) {{.*}} -> (tensor<16x64xf32>, !scaled.tensor<3x16x64xf32 in 3, none, #mxfp8_32x1>, tensor<3x16x64xf32>)
// CHECK: "test.loop"(%arg2, %[[KEPT]]#1, %[[KEPT]]#2)
// CHECK-LABEL: func.func private @forward_body
// CHECK-SAME: -> (tensor<16x64xf32>, !scaled.tensor<16x64xf32, none, #mxfp8_32x1>, tensor<16x64xf32>)
// CHECK: %[[X:.*]] = scaled.quantize input %arg0 : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #mxfp8_1x32, #mxfp8_32x1>
// CHECK-NOT: scaled.quantize input
// CHECK: %[[NARROW:.*]] = scaled.narrow %[[X]]
// CHECK: return %{{.*}}, %[[NARROW]], %arg0
// CHECK-LABEL: func.func private @backward_body
// CHECK-SAME: %arg1: !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
// CHECK-NOT: scaled.quantize input
// CHECK: scaled.gemm wgrad %{{.*}}, %arg1
func.func @main(%x: tensor<16x64xf32>, %w: tensor<3x64x64xf32> {scaled.parameter = "layer.kernel"}, %dy: tensor<16x64xf32> {scaled.tangent}) -> (tensor<16x64xf32>, tensor<3x64x64xf32>) {
  %y:3 = "test.loop"(%x, %w) {scaled.bodies = [@forward_body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x64x64xf32>) -> (tensor<16x64xf32>, tensor<3x16x64xf32>, tensor<3x16x64xf32>)
  %dw:2 = "test.loop"(%dy, %y#1, %y#2) {scaled.bodies = [@backward_body], scaled.trips = 3 : i64} : (tensor<16x64xf32>, tensor<3x16x64xf32>, tensor<3x16x64xf32>) -> (tensor<16x64xf32>, tensor<3x64x64xf32>)
  return %y#0, %dw#1 : tensor<16x64xf32>, tensor<3x64x64xf32>
}
func.func private @forward_body(%x: tensor<16x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "layer.kernel"}) -> (tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>) attributes {scaled.trained} {
  %a = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #mxfp8_1x32>
  %b = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %a, %b at "layer" : !scaled.tensor<16x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<16x64xf32>
  return %y, %x, %x : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>
}
func.func private @backward_body(%dy: tensor<16x64xf32> {scaled.tangent}, %x: tensor<16x64xf32>, %z: tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<64x64xf32>) {
  %dz = "test.multiply"(%dy, %z) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %a = scaled.quantize grad_output %dz : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
  %b = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
  %dw = scaled.gemm wgrad %a, %b at "layer" : !scaled.tensor<16x64xf32, none, #mxfp8_32x1>, !scaled.tensor<16x64xf32, none, #mxfp8_32x1> -> tensor<64x64xf32>
  return %dz, %dw : tensor<16x64xf32>, tensor<64x64xf32>
}

// -----

// A loop of another length, and a quantization that draws random bits, change nothing.
// CHECK-LABEL: func.func @others
// CHECK: -> (tensor<3x16x64xf32>, tensor<3x16x64xf32>)
func.func @others(%x: tensor<16x64xf32>, %rng: tensor<2xi64>) {
  %y:2 = "test.loop"(%x) {scaled.bodies = [@make], scaled.trips = 3 : i64} : (tensor<16x64xf32>) -> (tensor<3x16x64xf32>, tensor<3x16x64xf32>)
  "test.loop"(%y#0, %rng) {scaled.bodies = [@random], scaled.trips = 3 : i64} : (tensor<3x16x64xf32>, tensor<2xi64>) -> ()
  "test.loop"(%y#1) {scaled.bodies = [@shorter], scaled.trips = 1 : i64} : (tensor<3x16x64xf32>) -> ()
  return
}
func.func private @make(%x: tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<16x64xf32>) {
  return %x, %x : tensor<16x64xf32>, tensor<16x64xf32>
}
func.func private @random(%x: tensor<16x64xf32>, %rng: tensor<2xi64>) {
  %q = scaled.quantize grad_output %x rng(%rng) : tensor<16x64xf32>, tensor<2xi64> -> !scaled.tensor<16x64xf32, #nvfp4_1x16_stochastic>
  return
}
func.func private @shorter(%x: tensor<16x64xf32>) {
  %q = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #mxfp8_1x32>
  return
}

// -----

// Loops in loops: what the inner body makes is quantized there, and stacked for the trips of both.
// CHECK-LABEL: func.func @nested
// CHECK: %[[KEPT:.*]] = "test.loop"(%arg0) {{.*}} -> !scaled.tensor<2x3x16x64xf32 in 6, none, #mxfp8_32x1>
// CHECK: "test.loop"(%[[KEPT]])
// CHECK-LABEL: func.func private @make_three
// CHECK-SAME: -> !scaled.tensor<3x16x64xf32 in 3, none, #mxfp8_32x1>
// CHECK-LABEL: func.func private @make_one
// CHECK: %[[X:.*]] = scaled.quantize input %arg0
// CHECK: return %[[X]] : !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
// CHECK-LABEL: func.func private @read_three(%arg0: !scaled.tensor<3x16x64xf32 in 3, none, #mxfp8_32x1>)
// CHECK-LABEL: func.func private @read_one(%arg0: !scaled.tensor<16x64xf32, none, #mxfp8_32x1>)
// CHECK-NOT: scaled.quantize
func.func @nested(%x: tensor<16x64xf32>) {
  %y = "test.loop"(%x) {scaled.bodies = [@make_three], scaled.trips = 2 : i64} : (tensor<16x64xf32>) -> tensor<2x3x16x64xf32>
  "test.loop"(%y) {scaled.bodies = [@read_three], scaled.trips = 2 : i64} : (tensor<2x3x16x64xf32>) -> ()
  return
}
func.func private @make_three(%x: tensor<16x64xf32>) -> tensor<3x16x64xf32> {
  %y = "test.loop"(%x) {scaled.bodies = [@make_one], scaled.trips = 3 : i64} : (tensor<16x64xf32>) -> tensor<3x16x64xf32>
  return %y : tensor<3x16x64xf32>
}
func.func private @make_one(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  return %x : tensor<16x64xf32>
}
func.func private @read_three(%x: tensor<3x16x64xf32>) {
  "test.loop"(%x) {scaled.bodies = [@read_one], scaled.trips = 3 : i64} : (tensor<3x16x64xf32>) -> ()
  return
}
func.func private @read_one(%x: tensor<16x64xf32>) {
  %q = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
  "test.read"(%q) : (!scaled.tensor<16x64xf32, none, #mxfp8_32x1>) -> ()
  return
}

// -----

// An outer body that reads what it hands on keeps it as it is.
// CHECK-LABEL: func.func @read_twice
// CHECK: -> tensor<2x3x16x64xf32>
func.func @read_twice(%x: tensor<16x64xf32>) {
  %y = "test.loop"(%x) {scaled.bodies = [@make_three], scaled.trips = 2 : i64} : (tensor<16x64xf32>) -> tensor<2x3x16x64xf32>
  "test.loop"(%y) {scaled.bodies = [@read_three], scaled.trips = 2 : i64} : (tensor<2x3x16x64xf32>) -> ()
  return
}
func.func private @make_three(%x: tensor<16x64xf32>) -> tensor<3x16x64xf32> {
  %y = "test.loop"(%x) {scaled.bodies = [@make_one], scaled.trips = 3 : i64} : (tensor<16x64xf32>) -> tensor<3x16x64xf32>
  return %y : tensor<3x16x64xf32>
}
func.func private @make_one(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  return %x : tensor<16x64xf32>
}
func.func private @read_three(%x: tensor<3x16x64xf32>) {
  "test.loop"(%x) {scaled.bodies = [@read_one], scaled.trips = 3 : i64} : (tensor<3x16x64xf32>) -> ()
  "test.read"(%x) : (tensor<3x16x64xf32>) -> ()
  return
}
func.func private @read_one(%x: tensor<16x64xf32>) {
  %q = scaled.quantize input %x : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, none, #mxfp8_32x1>
  return
}
