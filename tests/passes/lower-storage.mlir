// RUN: steelyard-opt %s -p scaled-lower-storage | FileCheck %s

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#fp4 = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#tiles = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "tensor"}>
#own = #scaled.scheme<i8, "tensor", f32, {custom = "Mine"}>

// Kernels that are set alike are declared once; the operands are named.
// CHECK: func.func private @quantize_0(!torch.vtensor<[2,4,70],f32>) -> (!torch.vtensor<[8,70],ui8>, !torch.vtensor<[8,3],ui8>)
// CHECK-SAME: scaled.config = {role = "input", row = #mxfp8_1x32}, scaled.kernel = "quantize", scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]
// CHECK: func.func private @gemm_0
// CHECK-SAME: scaled.operands = ["lhs.codes", "lhs.scales", "rhs.codes", "rhs.scales"]
// CHECK-NOT: func.func private @quantize_0
// CHECK-LABEL: func.func @linear
// CHECK-SAME: %arg1: !torch.vtensor<[5,70],ui8> {scaled.part = "row.codes"}, %arg2: !torch.vtensor<[5,3],ui8> {scaled.part = "row.scales"}
// CHECK: %[[X:.*]]:2 = call @quantize_0(%arg0)
// CHECK: call @gemm_0(%[[X]]#0, %[[X]]#1, %arg1, %arg2)
// CHECK: call @quantize_0
func.func @linear(%x: !torch.vtensor<[2,4,70],f32>, %w: !scaled.tensor<tensor<5x70xf32>, #mx, none>, %z: !torch.vtensor<[2,4,70],f32>) -> (!torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,5],f32>) {
  %0 = "scaled.quantize"(%x) {role = "input", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,70],f32>) -> !scaled.tensor<tensor<2x4x70xf32>, #mx, none>
  %1 = "scaled.gemm"(%0, %w) {kind = "fprop", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<2x4x70xf32>, #mx, none>, !scaled.tensor<tensor<5x70xf32>, #mx, none>) -> !torch.vtensor<[2,4,5],f32>
  %2 = "scaled.quantize"(%z) {role = "input", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,70],f32>) -> !scaled.tensor<tensor<2x4x70xf32>, #mx, none>
  %3 = "scaled.gemm"(%2, %w) {kind = "fprop", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<2x4x70xf32>, #mx, none>, !scaled.tensor<tensor<5x70xf32>, #mx, none>) -> !torch.vtensor<[2,4,5],f32>
  return %1, %3 : !torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,5],f32>
}

// Two codes a byte, a scale for 16, and an amax; a size known only at run time is an operand of the GEMM.
// CHECK-LABEL: func.func @dynamic
// CHECK: %[[X:.*]]:3 = call @quantize_{{.*}}(%arg0) : (!torch.vtensor<[?,33],f32>) -> (!torch.vtensor<[?,17],ui8>, !torch.vtensor<[?,3],ui8>, !torch.vtensor<[],f32>)
// CHECK: %[[M:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: call @gemm_{{.*}}(%[[X]]#0, %[[X]]#1, %[[X]]#2, %arg1, %arg2, %arg3, %[[M]])
func.func @dynamic(%x: !torch.vtensor<[?,33],f32>, %w: !scaled.tensor<tensor<5x33xf32>, #tiles, none>) -> !torch.vtensor<[?,5],f32> {
  %0 = "scaled.quantize"(%x) {role = "input", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[?,33],f32>) -> !scaled.tensor<tensor<?x33xf32>, #fp4, none>
  %1 = "scaled.gemm"(%0, %w) {kind = "fprop", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<?x33xf32>, #fp4, none>, !scaled.tensor<tensor<5x33xf32>, #tiles, none>) -> !torch.vtensor<[?,5],f32>
  return %1 : !torch.vtensor<[?,5],f32>
}

// A quantized result is several; what a user's own quantizer makes stays one.
// CHECK-LABEL: func.func @results
// CHECK-SAME: -> (!torch.vtensor<[8,33],ui8> {scaled.part = "row.codes"}, !torch.vtensor<[8,2],ui8> {scaled.part = "row.scales"}, !scaled.tensor<tensor<8x33xf32>, #{{.*}}, none>)
// CHECK: call @quantize_{{.*}}(%arg0) : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor
func.func @results(%x: !torch.vtensor<[8,33],f32>) -> (!scaled.tensor<tensor<8x33xf32>, #mx, none>, !scaled.tensor<tensor<8x33xf32>, #own, none>) {
  %0 = "scaled.quantize"(%x) {role = "input", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor<tensor<8x33xf32>, #mx, none>
  %1 = "scaled.quantize"(%x) {layer = "up", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor<tensor<8x33xf32>, #own, none>
  return %0, %1 : !scaled.tensor<tensor<8x33xf32>, #mx, none>, !scaled.tensor<tensor<8x33xf32>, #own, none>
}

// State is read and made by kernels too.
// CHECK-LABEL: func.func @state
// CHECK: %[[NEW:.*]]:2 = call @update_scale_0(%arg0, %arg1, %arg2)
// CHECK: return %[[NEW]]#0, %[[NEW]]#1
#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
func.func @state(%scale: tensor<f32>, %history: tensor<4xf32>, %amax: tensor<f32>) -> (tensor<f32>, tensor<4xf32>) {
  %0:2 = "scaled.update_scale"(%scale, %history, %amax) {algorithm = "max", margin = 0 : i64, scheme = #delayed} : (tensor<f32>, tensor<4xf32>, tensor<f32>) -> (tensor<f32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<f32>, tensor<4xf32>
}

// How many rows a saved matrix has, its codes tell.
#fp8 = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
// CHECK-LABEL: func.func @saved
// CHECK: %[[M:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: call @dequantize_{{.*}}(%arg0, %arg1, %arg2, %[[M]])
// CHECK: %[[N:.*]] = torch.aten.size.int %arg3, %int1
// CHECK: call @dequantize_{{.*}}(%arg3, %arg4, %arg5, %[[N]])
func.func @saved(%x: !scaled.tensor<tensor<?x40xf32>, #fp8, none>, %y: !scaled.tensor<tensor<?x40xf32>, none, #fp8>) -> (!torch.vtensor<[?,40],f32>, !torch.vtensor<[?,40],f32>) {
  %0 = "scaled.dequantize"(%x) {usage = "rowwise"} : (!scaled.tensor<tensor<?x40xf32>, #fp8, none>) -> !torch.vtensor<[?,40],f32>
  %1 = "scaled.dequantize"(%y) {usage = "columnwise"} : (!scaled.tensor<tensor<?x40xf32>, none, #fp8>) -> !torch.vtensor<[?,40],f32>
  return %0, %1 : !torch.vtensor<[?,40],f32>, !torch.vtensor<[?,40],f32>
}
