// RUN: steelyard-opt %s -p scaled-insert-switches | FileCheck %s

// The GEMM as the model has it, bias included, and a switch between both.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %[[ON:[a-z0-9]+]]: tensor<f32> {scaled.state = "up.fprop.switch"}
// CHECK: %[[Y:.*]] = scaled.gemm fprop %{{.*}}, %{{.*}} bias(%arg2) at "up"
// CHECK: %[[P:.*]] = scaled.matmul fprop %arg0, %arg1 bias(%arg2) at "up"
// CHECK: %[[CHOSEN:.*]] = scaled.switch %[[ON]], %[[Y]], %[[P]]
// CHECK: return %[[CHOSEN]]
func.func @forward(%x: tensor<8x64xf32>, %w: tensor<32x64xf32>, %bias: tensor<32xf32>) -> tensor<8x32xf32> {
  %q = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %u = scaled.quantize weight %w : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %q, %u bias(%bias) at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<32x64xf32, #mxfp8_1x32>, tensor<32xf32> -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}

// All GEMMs of a layer have one switch, and what follows the first reads what it chose.
// CHECK-LABEL: func.func @twice
// CHECK-SAME: %[[ON:[a-z0-9]+]]: tensor<f32> {scaled.state = "up.fprop.switch"})
// CHECK: %[[FIRST:.*]] = scaled.switch %[[ON]]
// CHECK: scaled.quantize input %[[FIRST]]
// CHECK: scaled.matmul fprop %[[FIRST]]
// CHECK: scaled.switch %[[ON]]
func.func @twice(%x: tensor<8x64xf32>, %w: tensor<64x64xf32>) -> tensor<8x64xf32> {
  %v = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  %q = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %y = scaled.gemm fprop %q, %v at "up" : !scaled.tensor<8x64xf32, #fp8_tensor>, !scaled.tensor<64x64xf32, #fp8_tensor> -> tensor<8x64xf32>
  %r = scaled.quantize input %y : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %z = scaled.gemm fprop %r, %v at "up" : !scaled.tensor<8x64xf32, #fp8_tensor>, !scaled.tensor<64x64xf32, #fp8_tensor> -> tensor<8x64xf32>
  return %z : tensor<8x64xf32>
}

// CHECK-LABEL: func.func @experts
// CHECK: scaled.grouped_matmul fprop %arg0, %arg1 ends(%arg2) at "experts"
// CHECK: scaled.switch
func.func @experts(%x: tensor<8x64xf32>, %w: tensor<4x32x64xf32>, %ends: tensor<4xi32>) -> tensor<8x32xf32> {
  %q = scaled.quantize input %x ends(%ends) : tensor<8x64xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>
  %v = scaled.quantize weight %w : tensor<4x32x64xf32> -> !scaled.tensor<4x32x64xf32 in 4, #mxfp8_1x32>
  %y = scaled.grouped_gemm fprop %q, %v ends(%ends) at "experts" : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, !scaled.tensor<4x32x64xf32 in 4, #mxfp8_1x32>, tensor<4xi32> -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}
