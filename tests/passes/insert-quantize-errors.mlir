// RUN: steelyard-opt %s -p 'scaled-insert-quantize{recipe=nvfp4}' --split-input-file --verify-diagnostics
// RUN: not steelyard-opt %s -p 'scaled-insert-quantize{recipe=mxfp9}' --split-input-file 2>&1 | FileCheck %s

// CHECK: error: {{.*}}mxfp9{{.*}}mxfp8

func.func @random_bits(%dy: tensor<8x48xf32>, %w: tensor<48x64xf32>) -> tensor<8x64xf32> {
  // expected-error @+1 {{'scaled.matmul' op grad_output is rounded stochastically, whose random bits this pass does not make (layer 'mlp.up')}}
  %dx = "scaled.matmul"(%dy, %w) {batch_dims = 0 : i64, kind = "dgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x48xf32>, tensor<48x64xf32>) -> tensor<8x64xf32>
  return %dx : tensor<8x64xf32>
}
