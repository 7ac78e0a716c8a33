// RUN: steelyard-opt %s -p 'scaled-insert-quantize{recipe=fp8-delayed}' --split-input-file --verify-diagnostics
// RUN: not steelyard-opt %s -p 'scaled-insert-quantize{recipe=mxfp9}' --split-input-file 2>&1 | FileCheck %s

// CHECK: error: {{.*}}mxfp9{{.*}}mxfp8

func.func @delayed(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>) -> tensor<8x48xf32> {
  // expected-error @+1 {{'scaled.matmul' op input has a delayed scale, whose state this pass does not make (layer 'mlp.up')}}
  %y = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x64xf32>, tensor<48x64xf32>) -> tensor<8x48xf32>
  return %y : tensor<8x48xf32>
}
