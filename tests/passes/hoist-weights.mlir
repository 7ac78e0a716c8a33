// RUN: steelyard-opt %s -p scaled-hoist-weights,canonicalize | FileCheck %s

// CHECK: func.func @step(%arg0: !torch.vtensor<[8,64],f32>, %arg1: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}, %arg2: !scaled.tensor<48x64xf32, #mxfp8_1x32> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0})
// CHECK-NOT: torch.aten.t
// CHECK: %[[X:.*]] = scaled.quantize {{\w+}} %arg0
// CHECK: scaled.gemm {{\w+}} %[[X]], %arg2
func.func @step(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}) -> !torch.vtensor<[8,48],f32> {
  %t = torch.aten.t %w : !torch.vtensor<[64,48],f32> -> !torch.vtensor<[48,64],f32>
  %0 = scaled.quantize input %x : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.quantize weight %t : !torch.vtensor<[48,64],f32> -> !scaled.tensor<48x64xf32, #mxfp8_1x32>
  %2 = scaled.gemm fprop %0, %1 at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32> -> !torch.vtensor<[8,48],f32>
  return %2 : !torch.vtensor<[8,48],f32>
}

// The two copies of a parameter without gradient are made by two functions; those of one with a gradient by one.
// CHECK: func.func @frozen(
// CHECK-SAME: !scaled.tensor<48x64xf32, #mxfp8_1x32> {scaled.parameter = "frozen.weight"
// CHECK-SAME: !scaled.tensor<48x64xf32, none, #mxfp8_32x1> {scaled.parameter = "frozen.weight"
// CHECK-SAME: !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "trained.weight"
func.func @frozen(%x: !torch.vtensor<[8,64],f32>, %dy: !torch.vtensor<[8,48],f32>, %w: !torch.vtensor<[48,64],f32> {scaled.parameter = "frozen.weight"}, %v: !torch.vtensor<[48,64],f32> {scaled.parameter = "trained.weight"}) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32> {scaled.gradient = "input 0"}, !torch.vtensor<[48,64],f32> {scaled.gradient = "trained.weight"}) {
  %0 = scaled.quantize input %x : !torch.vtensor<[8,64],f32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.quantize grad_output %dy : !torch.vtensor<[8,48],f32> -> !scaled.tensor<8x48xf32, #mxfp8_1x32>
  %2 = scaled.quantize weight %w : !torch.vtensor<[48,64],f32> -> !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  %3 = scaled.quantize weight %v : !torch.vtensor<[48,64],f32> -> !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  %4 = scaled.gemm fprop %0, %2 at "frozen" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,48],f32>
  %5 = scaled.gemm fprop %0, %3 at "trained" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,48],f32>
  %6 = torch.aten.mul.Tensor %4, %5 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,48],f32> -> !torch.vtensor<[8,48],f32>
  %7 = scaled.gemm dgrad %1, %2 at "frozen" : !scaled.tensor<8x48xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,64],f32>
  %8 = scaled.gemm dgrad %1, %3 at "trained" : !scaled.tensor<8x48xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,64],f32>
  return %6, %7, %v : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32>
}

// The transpose goes along.
// CHECK: func.func private @weight_0(%arg0: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}) -> !scaled.tensor<48x64xf32, #mxfp8_1x32>
// CHECK: %[[T:.*]] = torch.aten.t %arg0
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %[[T]]
// CHECK: return %[[Q]]
