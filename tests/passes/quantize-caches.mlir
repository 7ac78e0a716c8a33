// RUN: steelyard-opt %s -p 'scaled-quantize-caches' | FileCheck %s

// What is appended to a cache is quantized, one scale per token and head; what is read from it is decoded.

// CHECK-LABEL: func.func @append
// CHECK: %[[Q:.*]] = scaled.quantize input %arg0 : {{.*}} -> !scaled.tensor<2x3x?x16xbf16, #fp8_row>
// CHECK: %[[PARTS:.*]]:2 = scaled.split %[[Q]] : {{.*}} -> !torch.vtensor<[?,16],ui8>, !torch.vtensor<[?,1],f32>
// CHECK: %[[CODES:.*]] = torch.aten.view %[[PARTS]]#0, {{.*}} -> !torch.vtensor<[2,3,?,16],ui8>
// CHECK: %[[SCALES:.*]] = torch.aten.view %[[PARTS]]#1, {{.*}} -> !torch.vtensor<[2,3,?,1],f32>
// CHECK: return %[[CODES]], %[[SCALES]]
func.func @append(%x: !torch.vtensor<[2,3,?,16],bf16>) -> (!torch.vtensor<[2,3,?,16],ui8>, !torch.vtensor<[2,3,?,1],f32>) {
  %0:2 = torch.operator "torch.steelyard.encode_rows"(%x) : (!torch.vtensor<[2,3,?,16],bf16>) -> (!torch.vtensor<[2,3,?,16],ui8>, !torch.vtensor<[2,3,?,1],f32>)
  return %0#0, %0#1 : !torch.vtensor<[2,3,?,16],ui8>, !torch.vtensor<[2,3,?,1],f32>
}

// CHECK-LABEL: func.func @read
// CHECK: %[[SCALES:.*]] = torch.aten.reshape %arg1, {{.*}} -> !torch.vtensor<[30,1],f32>
// CHECK: %[[CODES:.*]] = torch.aten.reshape %arg0, {{.*}} -> !torch.vtensor<[30,16],ui8>
// CHECK: %[[Q:.*]] = scaled.join %[[CODES]], %[[SCALES]] : {{.*}} -> !scaled.tensor<30x16xbf16, #fp8_row>
// CHECK: %[[X:.*]] = scaled.dequantize rowwise %[[Q]] : {{.*}} -> !torch.vtensor<[30,16],bf16>
// CHECK: torch.aten.view %[[X]], {{.*}} -> !torch.vtensor<[2,3,5,16],bf16>
func.func @read(%codes: !torch.vtensor<[2,3,5,16],ui8>, %scales: !torch.vtensor<[2,3,5,1],f32>) -> !torch.vtensor<[2,3,5,16],bf16> {
  %dtype = torch.constant.int 15
  %0 = torch.operator "torch.steelyard.decode_rows"(%codes, %scales, %dtype) : (!torch.vtensor<[2,3,5,16],ui8>, !torch.vtensor<[2,3,5,1],f32>, !torch.int) -> !torch.vtensor<[2,3,5,16],bf16>
  return %0 : !torch.vtensor<[2,3,5,16],bf16>
}

// Where a scale is given, it is an operand, and the cache keeps codes alone. What it saturates is counted.

// CHECK-LABEL: func.func @append_static
// CHECK: %[[N:.*]] = scaled.count_saturated %arg0, %arg1, %arg2 for #fp8_tensor_static
// CHECK: %[[Q:.*]] = scaled.quantize input %arg0 scale(%arg1) : {{.*}} -> !scaled.tensor<2x3x?x16xbf16, #fp8_tensor_static>
// CHECK: %[[PARTS:.*]]:2 = scaled.split %[[Q]] : {{.*}} -> !torch.vtensor<[?,16],ui8>, !torch.vtensor<[],f32>
// CHECK: %[[CODES:.*]] = torch.aten.view %[[PARTS]]#0, {{.*}} -> !torch.vtensor<[2,3,?,16],ui8>
// CHECK: return %[[CODES]], %[[N]]
func.func @append_static(%x: !torch.vtensor<[2,3,?,16],bf16>, %scale: !torch.vtensor<[],f32>, %count: !torch.vtensor<[],si64>) -> (!torch.vtensor<[2,3,?,16],ui8>, !torch.vtensor<[],si64>) {
  %0 = torch.operator "torch.steelyard.count_saturated"(%x, %scale, %count) : (!torch.vtensor<[2,3,?,16],bf16>, !torch.vtensor<[],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[],si64>
  %1 = torch.operator "torch.steelyard.encode_static"(%x, %scale) : (!torch.vtensor<[2,3,?,16],bf16>, !torch.vtensor<[],f32>) -> !torch.vtensor<[2,3,?,16],ui8>
  return %1, %0 : !torch.vtensor<[2,3,?,16],ui8>, !torch.vtensor<[],si64>
}

// CHECK-LABEL: func.func @read_static
// CHECK: %[[CODES:.*]] = torch.aten.reshape %arg0, {{.*}} -> !torch.vtensor<[30,16],ui8>
// CHECK: %[[Q:.*]] = scaled.join %[[CODES]], %arg1 : {{.*}} -> !scaled.tensor<30x16xbf16, #fp8_tensor_static>
// CHECK: %[[X:.*]] = scaled.dequantize rowwise %[[Q]] : {{.*}} -> !torch.vtensor<[30,16],bf16>
// CHECK: torch.aten.view %[[X]], {{.*}} -> !torch.vtensor<[2,3,5,16],bf16>
func.func @read_static(%codes: !torch.vtensor<[2,3,5,16],ui8>, %scale: !torch.vtensor<[],f32>) -> !torch.vtensor<[2,3,5,16],bf16> {
  %dtype = torch.constant.int 15
  %0 = torch.operator "torch.steelyard.decode_static"(%codes, %scale, %dtype) : (!torch.vtensor<[2,3,5,16],ui8>, !torch.vtensor<[],f32>, !torch.int) -> !torch.vtensor<[2,3,5,16],bf16>
  return %0 : !torch.vtensor<[2,3,5,16],bf16>
}

// Neither split nor join is a kernel: they name the memory of codes and scales.
// RUN: steelyard-opt %s -p 'scaled-quantize-caches,scaled-lower-storage' | FileCheck %s --check-prefix=LOWERED
// LOWERED-LABEL: func.func @append
// LOWERED: %[[PARTS:.*]]:2 = call @quantize_0(%arg0)
// LOWERED: torch.aten.view %[[PARTS]]#0
// LOWERED: torch.aten.view %[[PARTS]]#1
// LOWERED-LABEL: func.func @read
// LOWERED: %[[SCALES:.*]] = torch.aten.reshape %arg1
// LOWERED: %[[CODES:.*]] = torch.aten.reshape %arg0
// LOWERED: call @dequantize_0(%[[CODES]], %[[SCALES]])
// LOWERED-LABEL: func.func @append_static
// LOWERED: call @count_saturated_0(%arg0, %arg1, %arg2)
// LOWERED: call @quantize_1(%arg0, %arg1)
// LOWERED-LABEL: func.func @read_static
// LOWERED: %[[CODES:.*]] = torch.aten.reshape %arg0
// LOWERED: call @dequantize_1(%[[CODES]], %arg1, %arg1)
