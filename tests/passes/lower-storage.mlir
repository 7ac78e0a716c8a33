// RUN: steelyard-opt %s -p scaled-lower-storage | FileCheck %s

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
func.func @linear(%x: !torch.vtensor<[2,4,70],f32>, %w: !scaled.tensor<5x70xf32, #mxfp8_1x32>, %z: !torch.vtensor<[2,4,70],f32>) -> (!torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,5],f32>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[2,4,70],f32> -> !scaled.tensor<2x4x70xf32, #mxfp8_1x32>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<2x4x70xf32, #mxfp8_1x32>, !scaled.tensor<5x70xf32, #mxfp8_1x32> -> !torch.vtensor<[2,4,5],f32>
  %2 = scaled.quantize input %z : !torch.vtensor<[2,4,70],f32> -> !scaled.tensor<2x4x70xf32, #mxfp8_1x32>
  %3 = scaled.gemm fprop %2, %w at "up" : !scaled.tensor<2x4x70xf32, #mxfp8_1x32>, !scaled.tensor<5x70xf32, #mxfp8_1x32> -> !torch.vtensor<[2,4,5],f32>
  return %1, %3 : !torch.vtensor<[2,4,5],f32>, !torch.vtensor<[2,4,5],f32>
}

// Two codes per byte, a scale for 16, and an amax; a size known only at run time is an operand of the GEMM.
// CHECK-LABEL: func.func @dynamic
// CHECK: %[[X:.*]]:3 = call @quantize_{{.*}}(%arg0) : (!torch.vtensor<[?,33],f32>) -> (!torch.vtensor<[?,17],ui8>, !torch.vtensor<[?,3],ui8>, !torch.vtensor<[],f32>)
// CHECK: %[[M:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: call @gemm_{{.*}}(%[[X]]#0, %[[X]]#1, %[[X]]#2, %arg1, %arg2, %arg3, %[[M]])
func.func @dynamic(%x: !torch.vtensor<[?,33],f32>, %w: !scaled.tensor<5x33xf32, #nvfp4_16x16>) -> !torch.vtensor<[?,5],f32> {
  %0 = scaled.quantize input %x : !torch.vtensor<[?,33],f32> -> !scaled.tensor<?x33xf32, #nvfp4_1x16>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<?x33xf32, #nvfp4_1x16>, !scaled.tensor<5x33xf32, #nvfp4_16x16> -> !torch.vtensor<[?,5],f32>
  return %1 : !torch.vtensor<[?,5],f32>
}

// A quantized result is several; what a user's own quantizer makes stays one.
// CHECK-LABEL: func.func @results
// CHECK-SAME: -> (!torch.vtensor<[8,33],ui8> {scaled.part = "row.codes"}, !torch.vtensor<[8,2],ui8> {scaled.part = "row.scales"}, !scaled.tensor<8x33xf32, #{{.*}}>)
// CHECK: call @quantize_{{.*}}(%arg0) : (!torch.vtensor<[8,33],f32>) -> !scaled.tensor
func.func @results(%x: !torch.vtensor<[8,33],f32>) -> (!scaled.tensor<8x33xf32, #mxfp8_1x32>, !scaled.tensor<8x33xf32, #own>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[8,33],f32> -> !scaled.tensor<8x33xf32, #mxfp8_1x32>
  %1 = scaled.quantize input %x at "up" : !torch.vtensor<[8,33],f32> -> !scaled.tensor<8x33xf32, #own>
  return %0, %1 : !scaled.tensor<8x33xf32, #mxfp8_1x32>, !scaled.tensor<8x33xf32, #own>
}

// State is read and made by kernels too.
// CHECK-LABEL: func.func @state
// CHECK: %[[NEW:.*]]:2 = call @update_scale_0(%arg0, %arg1, %arg2)
// CHECK: return %[[NEW]]#0, %[[NEW]]#1
func.func @state(%scale: tensor<f32>, %history: tensor<4xf32>, %amax: tensor<f32>) -> (tensor<f32>, tensor<4xf32>) {
  %0:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<f32>, tensor<4xf32>, tensor<f32> -> tensor<f32>, tensor<4xf32>
  return %0#0, %0#1 : tensor<f32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @count
// CHECK: %[[COUNT:.*]] = call @count_saturated_0(%arg0, %arg1, %arg2)
// CHECK: return %[[COUNT]]
func.func @count(%x: tensor<8x64xf32>, %scale: tensor<f32>, %count: tensor<i64>) -> tensor<i64> {
  %0 = scaled.count_saturated %x, %scale, %count for #fp8_tensor_static : tensor<8x64xf32>, tensor<f32>, tensor<i64> -> tensor<i64>
  return %0 : tensor<i64>
}

// How many rows a saved matrix has, its codes tell.
// CHECK-LABEL: func.func @saved
// CHECK: %[[M:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: call @dequantize_{{.*}}(%arg0, %arg1, %arg2, %[[M]])
// CHECK: %[[N:.*]] = torch.aten.size.int %arg3, %int1
// CHECK: call @dequantize_{{.*}}(%arg3, %arg4, %arg5, %[[N]])
func.func @saved(%x: !scaled.tensor<?x40xf32, #fp8_tensor>, %y: !scaled.tensor<?x40xf32, none, #fp8_tensor>) -> (!torch.vtensor<[?,40],f32>, !torch.vtensor<[?,40],f32>) {
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<?x40xf32, #fp8_tensor> -> !torch.vtensor<[?,40],f32>
  %1 = scaled.dequantize columnwise %y : !scaled.tensor<?x40xf32, none, #fp8_tensor> -> !torch.vtensor<[?,40],f32>
  return %0, %1 : !torch.vtensor<[?,40],f32>, !torch.vtensor<[?,40],f32>
}

// Experts: the parts of all groups one after the other. Rows in 4 groups have as many codes as rows, but a columnwise
// block for each 32 of them and one more for each group, and each group has its own amax.
// CHECK-LABEL: func.func @experts
// CHECK-SAME: %arg1: !torch.vtensor<[8640],ui8> {scaled.part = "row.codes"}, %arg2: !torch.vtensor<[1080],ui8> {scaled.part = "row.scales"}, %arg3: !torch.vtensor<[4],f32> {scaled.part = "row.amax"}
// CHECK: %[[X:.*]]:3 = call @grouped_quantize_{{.*}}(%arg0, %arg4) : (!torch.vtensor<[70,96],f32>, !torch.vtensor<[4],si32>) -> (!torch.vtensor<[3360],ui8>, !torch.vtensor<[420],ui8>, !torch.vtensor<[4],f32>)
// CHECK: call @grouped_gemm_{{.*}}(%[[X]]#0, %[[X]]#1, %[[X]]#2, %arg1, %arg2, %arg3, %arg4)
// CHECK: call @grouped_quantize_{{.*}}(%arg0, %arg4) : {{.*}} -> (!torch.vtensor<[6720],ui8>, !torch.vtensor<[576],ui8>)
// CHECK: call @grouped_gemm_{{.*}} -> !torch.vtensor<[4,96,96],f32>
func.func @experts(%x: !torch.vtensor<[70,96],f32>, %w: !scaled.tensor<4x45x96xf32 in 4, #nvfp4_16x16>, %ends: !torch.vtensor<[4],si32>) -> (!torch.vtensor<[70,45],f32>, !torch.vtensor<[4,96,96],f32>) {
  %0 = scaled.quantize input %x ends(%ends) : !torch.vtensor<[70,96],f32>, !torch.vtensor<[4],si32> -> !scaled.tensor<70x96xf32 in 4, #nvfp4_1x16>
  %1 = scaled.grouped_gemm fprop %0, %w ends(%ends) : !scaled.tensor<70x96xf32 in 4, #nvfp4_1x16>, !scaled.tensor<4x45x96xf32 in 4, #nvfp4_16x16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[70,45],f32>
  %2 = scaled.quantize input %x ends(%ends) : !torch.vtensor<[70,96],f32>, !torch.vtensor<[4],si32> -> !scaled.tensor<70x96xf32 in 4, none, #mxfp8_32x1>
  %3 = scaled.grouped_gemm wgrad %2, %2 ends(%ends) : !scaled.tensor<70x96xf32 in 4, none, #mxfp8_32x1>, !scaled.tensor<70x96xf32 in 4, none, #mxfp8_32x1>, !torch.vtensor<[4],si32> -> !torch.vtensor<[4,96,96],f32>
  return %1, %3 : !torch.vtensor<[70,45],f32>, !torch.vtensor<[4,96,96],f32>
}

// The amaxes of groups are a part of their copies: nothing reads the source again.
// CHECK-LABEL: func.func @state_of_experts
// CHECK: %[[X:.*]]:3 = call @grouped_quantize_{{.*}}(%arg0, %arg1, %arg2)
// CHECK: call @update_scale_{{.*}}(%arg2, %arg3, %[[X]]#2) : (tensor<4xf32>, tensor<16x4xf32>, tensor<4xf32>)
func.func @state_of_experts(%x: tensor<70x96xf32>, %ends: tensor<4xi32>, %scale: tensor<4xf32>, %history: tensor<16x4xf32>) -> (tensor<4xf32>, tensor<16x4xf32>) {
  %q, %amax = scaled.quantize input %x ends(%ends) scale(%scale) at "up" : tensor<70x96xf32>, tensor<4xf32>, tensor<4xi32> -> !scaled.tensor<70x96xf32 in 4, #fp8_tensor_delayed>, tensor<4xf32>
  %s:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<4xf32>, tensor<16x4xf32>, tensor<4xf32> -> tensor<4xf32>, tensor<16x4xf32>
  return %s#0, %s#1 : tensor<4xf32>, tensor<16x4xf32>
}
