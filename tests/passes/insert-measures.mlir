// RUN: steelyard-opt %s -p scaled-insert-measures | FileCheck %s
// RUN: steelyard-opt %s -p 'scaled-insert-measures{influence=true}' | FileCheck %s --check-prefix=INFLUENCE

// Each operand, and the result without its bias beside the same product in high precision.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: tensor<545xf64> {scaled.measures = ["up:fprop:0:lhs input row mxfp8_1x32", "gate:fprop:0:lhs input row mxfp8_1x32"]}
// CHECK-SAME: tensor<545xf64> {scaled.measures = ["up:fprop:0:rhs weight row mxfp8_1x32"]}
// CHECK-SAME: tensor<8xf64> {scaled.measures = ["up:fprop:0:result"]}
// CHECK-SAME: {scaled.measures = ["gate:fprop:0:rhs weight row mxfp8_1x32"]}
// CHECK-SAME: {scaled.measures = ["gate:fprop:0:result"]}
// CHECK: %[[X:.*]] = scaled.quantize input %arg0
// CHECK: %[[W:.*]] = scaled.quantize weight %arg1
// CHECK: %[[Y:.*]] = scaled.gemm fprop %[[X]], %[[W]] bias(%arg3) at "up"
// CHECK: %[[INPUT:.*]] = scaled.measure_quantize rowwise %[[X]] source(%arg0)
// CHECK: %[[WEIGHT:.*]] = scaled.measure_quantize rowwise %[[W]] source(%arg1)
// CHECK: %[[P:.*]] = scaled.matmul fprop %arg0, %arg1 at "up"
// CHECK: %[[RESULT:.*]] = scaled.measure_product %[[Y]], %[[P]] bias(%arg3)
// What two GEMMs read is measured once.
// CHECK: scaled.gemm fprop %[[X]], %{{.*}} at "gate"
// CHECK-NEXT: scaled.measure_quantize rowwise %{{.*}} source(%arg2)
// CHECK: return %[[Y]], %{{.*}}, %[[INPUT]], %[[WEIGHT]], %[[RESULT]]
func.func @forward(%x: tensor<8x64xf32>, %up: tensor<32x64xf32>, %gate: tensor<32x64xf32>, %bias: tensor<32xf32>) -> (tensor<8x32xf32>, tensor<8x32xf32>) {
  %q = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %u = scaled.quantize weight %up : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %q, %u bias(%bias) at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<32x64xf32, #mxfp8_1x32>, tensor<32xf32> -> tensor<8x32xf32>
  %g = scaled.quantize weight %gate : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %z = scaled.gemm fprop %q, %g at "gate" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<32x64xf32, #mxfp8_1x32> -> tensor<8x32xf32>
  return %y, %z : tensor<8x32xf32>, tensor<8x32xf32>
}

// A layer that is called twice has two numbers.
// CHECK-LABEL: func.func @twice
// CHECK-SAME: "up:fprop:0:result"
// CHECK-SAME: "up:fprop:1:result"
func.func @twice(%x: tensor<8x64xf32>, %w: tensor<64x64xf32>) -> tensor<8x64xf32> {
  %v = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor>
  %q = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %y = scaled.gemm fprop %q, %v at "up" : !scaled.tensor<8x64xf32, #fp8_tensor>, !scaled.tensor<64x64xf32, #fp8_tensor> -> tensor<8x64xf32>
  %r = scaled.quantize input %y : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %z = scaled.gemm fprop %r, %v at "up" : !scaled.tensor<8x64xf32, #fp8_tensor>, !scaled.tensor<64x64xf32, #fp8_tensor> -> tensor<8x64xf32>
  return %z : tensor<8x64xf32>
}

// Experts: the rows of each group, and a stack of weights.
// CHECK-LABEL: func.func @experts
// CHECK: scaled.measure_quantize rowwise %{{.*}} source(%arg0) ends(%arg2)
// CHECK: scaled.measure_quantize rowwise %{{.*}} source(%arg1) :
// CHECK: scaled.grouped_matmul fprop %arg0, %arg1 ends(%arg2)
// CHECK: scaled.measure_product
func.func @experts(%x: tensor<8x64xf32>, %w: tensor<4x32x64xf32>, %ends: tensor<4xi32>) -> tensor<8x32xf32> {
  %q = scaled.quantize input %x ends(%ends) : tensor<8x64xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>
  %v = scaled.quantize weight %w : tensor<4x32x64xf32> -> !scaled.tensor<4x32x64xf32 in 4, #mxfp8_1x32>
  %y = scaled.grouped_gemm fprop %q, %v ends(%ends) at "experts" : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, !scaled.tensor<4x32x64xf32 in 4, #mxfp8_1x32>, tensor<4xi32> -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}

// Of a parameter that is stored in low precision, only what it decodes to is known.
// CHECK-LABEL: func.func @stored
// CHECK: %[[W:.*]] = scaled.stored %arg1
// CHECK: scaled.measure_quantize rowwise %[[W]] :
// CHECK: %[[DECODED:.*]] = scaled.dequantize rowwise %[[W]]
// CHECK: scaled.matmul fprop %arg0, %[[DECODED]]
func.func @stored(%x: tensor<8x64xf32>, %w: tensor<32x64xf32>) -> tensor<8x32xf32> {
  %v = scaled.stored %w : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #nvfp4_1x16>
  %y = scaled.gemm fprop %x, %v at "up" : tensor<8x64xf32>, !scaled.tensor<32x64xf32, #nvfp4_1x16> -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}

// Products of other dtypes are compared in f32.
// CHECK-LABEL: func.func @bf16
// CHECK: %[[P:.*]] = scaled.matmul {{.*}} -> !torch.vtensor<[8,32],f32>
// CHECK: scaled.measure_product %{{.*}}, %[[P]] : !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],f32>
func.func @bf16(%x: !torch.vtensor<[8,64],bf16>, %w: !torch.vtensor<[32,64],bf16>) -> !torch.vtensor<[8,32],bf16> {
  %q = scaled.quantize input %x : !torch.vtensor<[8,64],bf16> -> !scaled.tensor<8x64xbf16, #mxfp8_1x32>
  %v = scaled.quantize weight %w : !torch.vtensor<[32,64],bf16> -> !scaled.tensor<32x64xbf16, #mxfp8_1x32>
  %y = scaled.gemm fprop %q, %v at "up" : !scaled.tensor<8x64xbf16, #mxfp8_1x32>, !scaled.tensor<32x64xbf16, #mxfp8_1x32> -> !torch.vtensor<[8,32],bf16>
  return %y : !torch.vtensor<[8,32],bf16>
}

// Gradients: the GEMMs of the backward, and on request what the error of the forward does to the loss.
// CHECK-LABEL: func.func @joint
// CHECK-SAME: "up:wgrad:0:lhs grad_output col mxfp8_32x1"
// CHECK-SAME: "up:wgrad:0:result"
// CHECK-NOT: scaled.measure_influence
// INFLUENCE-LABEL: func.func @joint
// INFLUENCE-SAME: "up:fprop:0:influence"
// INFLUENCE: %[[Y:.*]] = scaled.gemm fprop
// INFLUENCE: scaled.measure_influence %[[Y]], %{{.*}}, %arg2 :
func.func @joint(%x: tensor<32x64xf32>, %w: tensor<64x64xf32>, %dy: tensor<32x64xf32> {scaled.tangent}) -> (tensor<32x64xf32>, tensor<64x64xf32> {scaled.gradient = "up.weight"}) {
  %q = scaled.quantize input %x : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  %v = scaled.quantize weight %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  %y = scaled.gemm fprop %q, %v at "up" : !scaled.tensor<32x64xf32, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<32x64xf32>
  %d = scaled.quantize grad_output %dy : tensor<32x64xf32> -> !scaled.tensor<32x64xf32, none, #mxfp8_32x1>
  %dw = scaled.gemm wgrad %d, %q at "up" : !scaled.tensor<32x64xf32, none, #mxfp8_32x1>, !scaled.tensor<32x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> tensor<64x64xf32>
  return %y, %dw : tensor<32x64xf32>, tensor<64x64xf32>
}
