// RUN: steelyard-opt %s -p 'scaled-pack-weights{target=cpu}' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-pack-weights{target=cpu},scaled-lower-storage,scaled-select-kernels{target=cpu},scaled-plan-memory' | FileCheck %s --check-prefix=LOWERED
// RUN: not steelyard-opt %s -p 'scaled-pack-weights{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of {{.*}}, got 'abacus'

// LOWERED: func.func private @gemm_0
// LOWERED-SAME: scaled.device = "cpu", scaled.kernel = "gemm", scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.packed"]

// Two units of 8 rows by 3 of 16 columns: 6 * 72 bytes, rounded up to 64, and an amax.
// LOWERED: func.func private @pack_0(!torch.vtensor<[10,17],ui8>, !torch.vtensor<[10,3],ui8>, !torch.vtensor<[],f32>) -> !torch.vtensor<[452],ui8>
// LOWERED-SAME: scaled.destinations, scaled.device = "cpu", scaled.kernel = "pack", scaled.operands = ["row.codes", "row.scales", "row.amax"], scaled.results = ["row.packed"]

// CHECK-LABEL: func.func @step
// CHECK-SAME: %arg2: !scaled.tensor<10x33xf32, #[[PACKED:nvfp4_16x16_packed]]> {scaled.parameter = "up.weight"
// CHECK-SAME: %arg4: !scaled.tensor<10x33xf32, #mxfp8_1x32> {scaled.parameter = "gate.weight"
// CHECK-SAME: %arg6: !scaled.tensor<10x33xf32, #nvfp4_16x16> {scaled.parameter = "down.weight"
// LOWERED-LABEL: func.func @step
// LOWERED-SAME: %arg2: !torch.vtensor<[452],ui8> {scaled.parameter = "up.weight", scaled.part = "row.packed"
// LOWERED: call @gemm_0({{.*}}, %arg2)
func.func @step(%x: !torch.vtensor<[8,33],f32>, %w: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}, %qw: !scaled.tensor<10x33xf32, #nvfp4_16x16> {scaled.parameter = "up.weight", scaled.sources = array<i64: 1>, scaled.weight = @weight_0}, %v: !torch.vtensor<[10,33],f32> {scaled.parameter = "gate.weight"}, %qv: !scaled.tensor<10x33xf32, #mxfp8_1x32> {scaled.parameter = "gate.weight", scaled.sources = array<i64: 3>, scaled.weight = @weight_1}, %u: !torch.vtensor<[10,33],f32> {scaled.parameter = "down.weight"}, %qu: !scaled.tensor<10x33xf32, #nvfp4_16x16> {scaled.parameter = "down.weight", scaled.sources = array<i64: 5>, scaled.weight = @weight_2}) -> (!torch.vtensor<[8,10],f32>, !torch.vtensor<[8,10],f32>, !torch.vtensor<[10,33],f32>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[8,33],f32> -> !scaled.tensor<8x33xf32, #nvfp4_1x16>
  %1 = scaled.gemm fprop %0, %qw at "up" : !scaled.tensor<8x33xf32, #nvfp4_1x16>, !scaled.tensor<10x33xf32, #nvfp4_16x16> -> !torch.vtensor<[8,10],f32>
  // FP8 codes are read as they are.
  %2 = scaled.quantize input %x : !torch.vtensor<[8,33],f32> -> !scaled.tensor<8x33xf32, #mxfp8_1x32>
  %3 = scaled.gemm fprop %2, %qv at "gate" : !scaled.tensor<8x33xf32, #mxfp8_1x32>, !scaled.tensor<10x33xf32, #mxfp8_1x32> -> !torch.vtensor<[8,10],f32>
  // A weight that something else reads too stays compact.
  %4 = scaled.dequantize rowwise %qu : !scaled.tensor<10x33xf32, #nvfp4_16x16> -> !torch.vtensor<[10,33],f32>
  return %1, %3, %4 : !torch.vtensor<[8,10],f32>, !torch.vtensor<[8,10],f32>, !torch.vtensor<[10,33],f32>
}

// What makes a weight keeps no memory for the next call.
// LOWERED: func.func private @weight_0(%arg0: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}) -> (!torch.vtensor<[452],ui8> {scaled.part = "row.packed"})
// LOWERED-NOT: scaled.arena
// LOWERED: %[[Q:.*]]:3 = call @quantize_
// LOWERED: %[[P:.*]] = call @pack_0(%[[Q]]#0, %[[Q]]#1, %[[Q]]#2)
// LOWERED: return %[[P]]
// CHECK: func.func private @weight_0
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %arg0
// CHECK: %[[P:.*]] = scaled.pack %[[Q]]
// CHECK: return %[[P]] : !scaled.tensor<10x33xf32, #[[PACKED]]>
func.func private @weight_0(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "up.weight"}) -> !scaled.tensor<10x33xf32, #nvfp4_16x16> {
  %0 = scaled.quantize weight %w : !torch.vtensor<[10,33],f32> -> !scaled.tensor<10x33xf32, #nvfp4_16x16>
  return %0 : !scaled.tensor<10x33xf32, #nvfp4_16x16>
}
// CHECK-NOT: scaled.pack
func.func private @weight_1(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "gate.weight"}) -> !scaled.tensor<10x33xf32, #mxfp8_1x32> {
  %0 = scaled.quantize weight %w : !torch.vtensor<[10,33],f32> -> !scaled.tensor<10x33xf32, #mxfp8_1x32>
  return %0 : !scaled.tensor<10x33xf32, #mxfp8_1x32>
}
func.func private @weight_2(%w: !torch.vtensor<[10,33],f32> {scaled.parameter = "down.weight"}) -> !scaled.tensor<10x33xf32, #nvfp4_16x16> {
  %0 = scaled.quantize weight %w : !torch.vtensor<[10,33],f32> -> !scaled.tensor<10x33xf32, #nvfp4_16x16>
  return %0 : !scaled.tensor<10x33xf32, #nvfp4_16x16>
}
