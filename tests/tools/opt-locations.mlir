// A diagnostic shows the innermost place in a file that an op's location names: the model's source line.

// RUN: not steelyard-opt %s 2>&1 | FileCheck %s
// CHECK: model.py:12:8: error: 'scaled.matmul' op kind must be one of fprop, dgrad, wgrad, got forward [matmul_c1] (layer 'layers.0.q_proj')

func.func @f(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>) -> tensor<8x48xf32> {
  %y = scaled.matmul forward %x, %w at "layers.0.q_proj" : tensor<8x64xf32>, tensor<48x64xf32> -> tensor<8x48xf32> loc("layers.0.q_proj"(callsite("model.py":12:8 at "train.py":3:1)))
  return %y : tensor<8x48xf32>
}
