// RUN: steelyard-opt %s -p scaled-hoist-weights,canonicalize | FileCheck %s

// What is measured of a weight is made once per write, by a function of its own.
// CHECK-LABEL: func.func @measured
// CHECK-SAME: %arg2: tensor<545xf64> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0}
// CHECK-SAME: %arg3: !scaled.tensor<32x64xf32, #mxfp8_1x32> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_1}
// CHECK-NOT: scaled.measure_quantize
// CHECK: return %{{.*}}, %arg2
// CHECK-LABEL: func.func private @weight_0(%arg0: tensor<32x64xf32>
// CHECK: %[[Q:.*]] = scaled.quantize weight %arg0
// CHECK: %[[NUMBERS:.*]] = scaled.measure_quantize rowwise %[[Q]] source(%arg0)
// CHECK: return %[[NUMBERS]]
func.func @measured(%x: tensor<8x64xf32>, %w: tensor<32x64xf32> {scaled.parameter = "up.weight"}) -> (tensor<8x32xf32>, tensor<545xf64> {scaled.measures = ["up:fprop:0:rhs weight row mxfp8_1x32"]}) {
  %q = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %v = scaled.quantize weight %w : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %q, %v at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<32x64xf32, #mxfp8_1x32> -> tensor<8x32xf32>
  %m = scaled.measure_quantize rowwise %v source(%w) : !scaled.tensor<32x64xf32, #mxfp8_1x32>, tensor<32x64xf32> -> tensor<545xf64>
  return %y, %m : tensor<8x32xf32>, tensor<545xf64>
}
