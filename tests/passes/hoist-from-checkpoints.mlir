// RUN: steelyard-opt %s --split-input-file --allow-unregistered-dialect -p scaled-hoist-from-checkpoints | FileCheck %s

// What a region quantizes of its operands is quantized before it, with what its forward quantized. What it computes
// again is quantized again, and an operand that it reads no more is absent.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = stablehlo.transpose %arg1
// CHECK: %[[W:.*]] = scaled.quantize weight %[[T]] at "layer" : tensor<96x64xf32> -> !scaled.tensor<96x64xf32, #mxfp8_1x32, #mxfp8_32x1>
// CHECK: %[[ABSENT:.*]] = "jax.absent"() : () -> tensor<64x96xf32>
// CHECK: "jax.remat2"(%arg0, %[[ABSENT]], %[[W]])
// CHECK-NOT: scaled.quantize
// CHECK-LABEL: func.func private @region
// CHECK-SAME: %[[GIVEN:arg[0-9]+]]: !scaled.tensor<96x64xf32, #mxfp8_1x32, #mxfp8_32x1> {scaled.handed = "handed_0"}
// CHECK: "test.compute"
// CHECK: scaled.quantize input
// CHECK-NOT: scaled.quantize
// CHECK: "test.read"(%{{.*}}, %[[GIVEN]], %arg0)
func.func @main(%x: tensor<16x64xf32>, %w: tensor<64x96xf32> {scaled.parameter = "layer.kernel"}) {
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x96xf32>) -> tensor<96x64xf32>
  %1 = scaled.quantize weight %0 at "layer" : tensor<96x64xf32> -> !scaled.tensor<96x64xf32, #mxfp8_1x32>
  "test.read"(%1) : (!scaled.tensor<96x64xf32, #mxfp8_1x32>) -> ()
  "jax.remat2"(%x, %w) {scaled.bodies = [@region]} : (tensor<16x64xf32>, tensor<64x96xf32>) -> ()
  return
}
func.func private @region(%x: tensor<16x64xf32>, %w: tensor<64x96xf32> {scaled.parameter = "layer.kernel"}) {
  %0 = "test.compute"(%x) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %1 = scaled.quantize input %0 at "layer" : tensor<16x64xf32> -> !scaled.tensor<16x64xf32, #mxfp8_1x32>
  %2 = stablehlo.transpose %w, dims = [1, 0] : (tensor<64x96xf32>) -> tensor<96x64xf32>
  %3 = scaled.quantize weight %2 at "layer" : tensor<96x64xf32> -> !scaled.tensor<96x64xf32, none, #mxfp8_32x1>
  "test.read"(%1, %3, %x) : (!scaled.tensor<16x64xf32, #mxfp8_1x32>, !scaled.tensor<96x64xf32, none, #mxfp8_32x1>, tensor<16x64xf32>) -> ()
  return
}

// -----

// What is scaled by state takes that of the function, and records its amax if its forward does. Random bits stay.
// CHECK-LABEL: func.func @state
// CHECK-SAME: %[[SCALE:arg[0-9]+]]: tensor<f32> {scaled.state = "layer.input.scale"}
// CHECK: %[[X:.*]]:2 = scaled.quantize input %arg0 scale(%[[SCALE]]) at "layer" {{.*}} #fp8_tensor_delayed, #fp8_tensor_delayed>, tensor<f32>
// CHECK: return %[[X]]#1
// CHECK-LABEL: func.func private @region
// CHECK: scaled.quantize grad_output %arg0 rng(%arg1)
// CHECK-NOT: scaled.quantize
func.func @state(%x: tensor<16x64xf32>, %rng: tensor<2xi64>, %s: tensor<f32> {scaled.state = "layer.input.scale"}) -> tensor<f32> {
  %0:2 = scaled.quantize input %x scale(%s) at "layer" : tensor<16x64xf32>, tensor<f32> -> !scaled.tensor<16x64xf32, #fp8_tensor_delayed>, tensor<f32>
  "test.read"(%0#0) : (!scaled.tensor<16x64xf32, #fp8_tensor_delayed>) -> ()
  "jax.remat2"(%x, %rng, %s) {scaled.bodies = [@region]} : (tensor<16x64xf32>, tensor<2xi64>, tensor<f32>) -> ()
  return %0#1 : tensor<f32>
}
func.func private @region(%x: tensor<16x64xf32>, %rng: tensor<2xi64>, %s: tensor<f32> {scaled.state = "layer.input.scale"}) {
  %0 = scaled.quantize input %x scale(%s) at "layer" : tensor<16x64xf32>, tensor<f32> -> !scaled.tensor<16x64xf32, none, #fp8_tensor_delayed>
  %1 = scaled.quantize grad_output %x rng(%rng) : tensor<16x64xf32>, tensor<2xi64> -> !scaled.tensor<16x64xf32, #nvfp4_1x16_stochastic>
  "test.read"(%0, %1) : (!scaled.tensor<16x64xf32, none, #fp8_tensor_delayed>, !scaled.tensor<16x64xf32, #nvfp4_1x16_stochastic>) -> ()
  return
}
