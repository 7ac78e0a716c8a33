// RUN: steelyard-opt %s -p scaled-insert-transpose | FileCheck %s

// One scale a tensor: the weight's columns are its rowwise codes, turned.
// CHECK-LABEL: func.func @from_codes
// CHECK: %[[W:.*]] = scaled.quantize {{\w+}} %arg1 {{.*}} -> !scaled.tensor<48x64xf32, #[[S:.*]]>
// CHECK: %[[T:.*]] = scaled.transpose %[[W]] {{.*}} -> !scaled.tensor<48x64xf32, none, #[[S]]>
// CHECK: scaled.gemm fprop %{{.*}}, %[[W]]
// CHECK: scaled.gemm dgrad %{{.*}}, %[[T]]
func.func @from_codes(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32>) -> (tensor<8x48xf32>, tensor<8x64xf32>) {
  %0 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %1 = scaled.quantize weight %w : tensor<48x64xf32> -> !scaled.tensor<48x64xf32, #fp8_tensor, #fp8_tensor>
  %2 = scaled.quantize grad_output %dy : tensor<8x48xf32> -> !scaled.tensor<8x48xf32, #fp8_tensor>
  %3 = scaled.gemm fprop %0, %1 at "up" : !scaled.tensor<8x64xf32, #fp8_tensor>, !scaled.tensor<48x64xf32, #fp8_tensor, #fp8_tensor> -> tensor<8x48xf32>
  %4 = scaled.gemm dgrad %2, %1 at "up" : !scaled.tensor<8x48xf32, #fp8_tensor>, !scaled.tensor<48x64xf32, #fp8_tensor, #fp8_tensor> -> tensor<8x64xf32>
  return %3, %4 : tensor<8x48xf32>, tensor<8x64xf32>
}

// Blocks along rows and along columns: both copies come from the source.
// CHECK-LABEL: func.func @from_the_source
// CHECK: scaled.quantize {{\w+}} %arg0 {{.*}} -> !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1>
// CHECK-NOT: scaled.transpose
func.func @from_the_source(%w: tensor<48x64xf32>, %dy: !scaled.tensor<8x48xf32, #mxfp8_1x32>) -> tensor<8x64xf32> {
  %0 = scaled.quantize weight %w : tensor<48x64xf32> -> !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  %1 = scaled.gemm dgrad %dy, %0 at "up" : !scaled.tensor<8x48xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> tensor<8x64xf32>
  return %1 : tensor<8x64xf32>
}
