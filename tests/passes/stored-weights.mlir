// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="head=none"},scaled-insert-quantize' | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 overrides="head=none"},scaled-insert-quantize,scaled-hoist-weights,scaled-pack-weights{target=cpu},scaled-lower-storage' | FileCheck %s --check-prefix=LOWERED

// A parameter that is quantized already is multiplied in the format that it is stored in. The recipe decides on the
// activations, on the copies that the backward reads, and on layers in high precision.

// CHECK-LABEL: func.func @stored
// CHECK: %[[X:.*]] = scaled.quantize input %arg0 {{.*}} -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
// CHECK: %[[W:.*]] = scaled.stored %arg1 : {{.*}} -> !scaled.tensor<48x64xf32, #nvfp4_1x16_static>
// CHECK: scaled.gemm fprop %[[X]], %[[W]] at "up"
// CHECK: %[[COL:.*]] = scaled.quantize weight %arg1 {{.*}} -> !scaled.tensor<48x64xf32, none, #mxfp8_32x1>
// CHECK: scaled.gemm dgrad %{{.*}}, %[[COL]] at "up"
// CHECK: scaled.matmul fprop %arg0, %arg1 at "head" {{.*}}override 'head' asks for high precision

// LOWERED: func.func @stored({{.*}} %arg3: !torch.vtensor<[1732],ui8> {scaled.parameter = "up.weight", scaled.part = "row.packed"
// LOWERED: call @gemm_0({{.*}}, %arg3)
func.func @stored(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[48,64],f32> {scaled.parameter = "up.weight", scaled.stored = #nvfp4_1x16_static}, %dy: !torch.vtensor<[8,48],f32>) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,48],f32>) {
  %0 = scaled.matmul fprop %x, %w at "up" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,48],f32>
  %1 = scaled.matmul dgrad %dy, %w at "up" : !torch.vtensor<[8,48],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,64],f32>
  %2 = scaled.matmul fprop %x, %w at "head" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,48],f32>
  return %0, %1, %2 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,64],f32>, !torch.vtensor<[8,48],f32>
}

// A transpose has the rows of the parameter's transpose; where the parameter holds none, the recipe quantizes.
// CHECK-LABEL: func.func @transposed
// CHECK: %[[T:.*]] = torch.aten.t %arg1
// CHECK: scaled.stored %[[T]] : {{.*}} -> !scaled.tensor<48x64xf32, #fp8_row>
// CHECK: %[[V:.*]] = torch.aten.t %arg2
// CHECK: scaled.quantize weight %[[V]] {{.*}} -> !scaled.tensor<48x64xf32, #mxfp8_1x32>
func.func @transposed(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[64,48],f32> {scaled.parameter = "up.weight", scaled.stored_transposed = #fp8_row}, %v: !torch.vtensor<[64,48],f32> {scaled.parameter = "down.weight", scaled.stored = #fp8_row}) -> (!torch.vtensor<[8,48],f32>, !torch.vtensor<[8,48],f32>) {
  %t = torch.aten.t %w : !torch.vtensor<[64,48],f32> -> !torch.vtensor<[48,64],f32>
  %0 = scaled.matmul fprop %x, %t at "up" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,48],f32>
  %u = torch.aten.t %v : !torch.vtensor<[64,48],f32> -> !torch.vtensor<[48,64],f32>
  %1 = scaled.matmul fprop %x, %u at "down" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32> -> !torch.vtensor<[8,48],f32>
  return %0, %1 : !torch.vtensor<[8,48],f32>, !torch.vtensor<[8,48],f32>
}

// Each expert of a stack is a matrix of its own.
// CHECK-LABEL: func.func @experts
// CHECK: %[[S:.*]] = scaled.stored %arg1 : {{.*}} -> !scaled.tensor<4x48x64xf32 in 4, #fp8_128x128>
// CHECK: scaled.grouped_gemm fprop %{{.*}}, %[[S]] ends(%arg2)
func.func @experts(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[4,48,64],f32> {scaled.parameter = "experts.up", scaled.stored = #fp8_128x128}, %e: !torch.vtensor<[4],si32>) -> !torch.vtensor<[8,48],f32> {
  %0 = scaled.grouped_matmul fprop %x, %w ends(%e) at "experts.up" : !torch.vtensor<[8,64],f32>, !torch.vtensor<[4,48,64],f32>, !torch.vtensor<[4],si32> -> !torch.vtensor<[8,48],f32>
  return %0 : !torch.vtensor<[8,48],f32>
}

// Functions of weights are last.
// LOWERED: func.func private @weight_0({{.*}}scaled.stored = #nvfp4_1x16_static}) -> (!torch.vtensor<[1732],ui8> {scaled.part = "row.packed"}) attributes {scaled.weight_form = {packed, scheme = #nvfp4_1x16_static}
// LOWERED: %[[PARTS:.*]]:3 = call @stored_0(%arg0)
// LOWERED: call @pack_0(%[[PARTS]]#0, %[[PARTS]]#1, %[[PARTS]]#2)
