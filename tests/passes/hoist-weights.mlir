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

// The transpose goes along.
// CHECK: func.func private @weight_0(%arg0: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}) -> !scaled.tensor<48x64xf32, #mxfp8_1x32>
// CHECK: %[[T:.*]] = torch.aten.t %arg0
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %[[T]]
// CHECK: return %[[Q]]
