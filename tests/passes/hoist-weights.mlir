// RUN: steelyard-opt %s -p scaled-hoist-weights,canonicalize | FileCheck %s

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>

// CHECK: func.func @step(%arg0: !torch.vtensor<[8,64],f32>, %arg1: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}, %arg2: !scaled.tensor<tensor<48x64xf32>, #mxfp8_1x32, none> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0})
// CHECK-NOT: torch.aten.t
// CHECK: %[[X:.*]] = "scaled.quantize"(%arg0)
// CHECK: "scaled.gemm"(%[[X]], %arg2)
func.func @step(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}) -> !torch.vtensor<[8,48],f32> {
  %t = torch.aten.t %w : !torch.vtensor<[64,48],f32> -> !torch.vtensor<[48,64],f32>
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[8,64],f32>) -> !scaled.tensor<tensor<8x64xf32>, #mx, none>
  %1 = "scaled.quantize"(%t) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (!torch.vtensor<[48,64],f32>) -> !scaled.tensor<tensor<48x64xf32>, #mx, none>
  %2 = "scaled.gemm"(%0, %1) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x64xf32>, #mx, none>, !scaled.tensor<tensor<48x64xf32>, #mx, none>) -> !torch.vtensor<[8,48],f32>
  return %2 : !torch.vtensor<[8,48],f32>
}

// The transpose goes along.
// CHECK: func.func private @weight_0(%arg0: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight"}) -> !scaled.tensor<tensor<48x64xf32>, #mxfp8_1x32, none>
// CHECK: %[[T:.*]] = torch.aten.t %arg0
// CHECK: %[[Q:.*]] = "scaled.quantize"(%[[T]])
// CHECK: return %[[Q]]
