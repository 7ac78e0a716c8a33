// RUN: steelyard-opt %s -p 'scaled-pack-weights{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-pack-weights{target=cpu},scaled-lower-storage,scaled-select-kernels{target=cpu},scaled-plan-memory' | FileCheck %s --check-prefix=LOWERED
// RUN: not steelyard-opt %s -p 'scaled-pack-weights{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#tiles = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "tensor"}>
#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>

// LOWERED: func.func private @gemm_0
// LOWERED-SAME: scaled.device = "cpu", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.packed"]

// Two units of 8 rows by 3 of 16 columns: 6 * 72 bytes, rounded up to 64, and an amax.
// LOWERED: func.func private @pack_0(!torch.vtensor<[10,17],ui8>, !torch.vtensor<[10,3],ui8>, !torch.vtensor<[],f32>) -> !torch.vtensor<[452],ui8>
// LOWERED-SAME: scaled.destinations, scaled.device = "cpu", scaled.kernel = "pack", scaled.operands = ["row.codes", "row.scales", "row.amax"], scaled.results = ["row.packed"]

// CHECK-LABEL: func.func @step
// CHECK-SAME: %arg2: !scaled.tensor<tensor<10x33xf32>, #[[PACKED:nvfp4_16x16_packed]], none> {scaled.parameter = "up.weight"
// CHECK-SAME: %arg4: !scaled.tensor<tensor<10x33xf32>, #mxfp8_1x32, none> {scaled.parameter = "gate.weight"
// CHECK-SAME: %arg6: !scaled.tensor<tensor<10x33xf32>, #nvfp4_16x16, none> {scaled.parameter = "down.weight"
// LOWERED-LABEL: func.func @step
// LOWERED-SAME: %arg2: !torch.vtensor<[452],ui8> {scaled.parameter = "up.weight", scaled.part = "row.packed"
// LOWERED: call @gemm_0({{.*}}, %arg2)
func.func @step(%x: !torch.vtensor<[8,33],f32>, %w: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}, %qw: !scaled.tensor<tensor<10x33xf32>, #tiles, none> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0}, %v: !torch.vtensor<[10,33],f32> {scaled.parameter = "gate.weight"}, %qv: !scaled.tensor<tensor<10x33xf32>, #mx, none> {scaled.parameter = "gate.weight", scaled.sources = array<i64: 3>, scaled.weight = @weight_1}, %u: !torch.vtensor<[10,33],f32> {scaled.parameter = "down.weight"}, %qu: !scaled.tensor<tensor<10x33xf32>, #tiles, none> {scaled.parameter = "down.weight", scaled.sources = array<i64: 5>, scaled.weight = @weight_2}) -> (!torch.vtensor<[8,10],f32>, !torch.vtensor<[8,10],f32>, !torch.vtensor<[10,33],f32>) {
  %0 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor<tensor<8x33xf32>, #nv, none>
  %1 = "scaled.gemm"(%0, %qw) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x33xf32>, #nv, none>, !scaled.tensor<tensor<10x33xf32>, #tiles, none>) -> !torch.vtensor<[8,10],f32>
  // FP8 codes are read as they are.
  %2 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor<tensor<8x33xf32>, #mx, none>
  %3 = "scaled.gemm"(%2, %qv) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "gate", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x33xf32>, #mx, none>, !scaled.tensor<tensor<10x33xf32>, #mx, none>) -> !torch.vtensor<[8,10],f32>
  // A weight that something else reads too stays compact.
  %4 = "scaled.dequantize"(%qu) {usage = "rowwise"} : (!scaled.tensor<tensor<10x33xf32>, #tiles, none>) -> !torch.vtensor<[10,33],f32>
  return %1, %3, %4 : !torch.vtensor<[8,10],f32>, !torch.vtensor<[8,10],f32>, !torch.vtensor<[10,33],f32>
}

// What makes a weight keeps no memory for the next call.
// LOWERED: func.func private @weight_0(%arg0: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}) -> (!torch.vtensor<[452],ui8> {scaled.part = "row.packed"})
// LOWERED-NOT: scaled.arena
// LOWERED: %[[Q:.*]]:3 = call @quantize_
// LOWERED: %[[P:.*]] = call @pack_0(%[[Q]]#0, %[[Q]]#1, %[[Q]]#2)
// LOWERED: return %[[P]]
// CHECK: func.func private @weight_0
// CHECK: %[[Q:.*]] = "scaled.quantize"(%arg0)
// CHECK: %[[P:.*]] = "scaled.pack"(%[[Q]])
// CHECK: return %[[P]] : !scaled.tensor<tensor<10x33xf32>, #[[PACKED]], none>
func.func private @weight_0(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}) -> !scaled.tensor<tensor<10x33xf32>, #tiles, none> {
  %0 = "scaled.quantize"(%w) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (!torch.vtensor<[10,33],f32>) -> !scaled.tensor<tensor<10x33xf32>, #tiles, none>
  return %0 : !scaled.tensor<tensor<10x33xf32>, #tiles, none>
}
// CHECK-NOT: scaled.pack
func.func private @weight_1(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "gate.weight"}) -> !scaled.tensor<tensor<10x33xf32>, #mx, none> {
  %0 = "scaled.quantize"(%w) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (!torch.vtensor<[10,33],f32>) -> !scaled.tensor<tensor<10x33xf32>, #mx, none>
  return %0 : !scaled.tensor<tensor<10x33xf32>, #mx, none>
}
func.func private @weight_2(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "down.weight"}) -> !scaled.tensor<tensor<10x33xf32>, #tiles, none> {
  %0 = "scaled.quantize"(%w) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (!torch.vtensor<[10,33],f32>) -> !scaled.tensor<tensor<10x33xf32>, #tiles, none>
  return %0 : !scaled.tensor<tensor<10x33xf32>, #tiles, none>
}
