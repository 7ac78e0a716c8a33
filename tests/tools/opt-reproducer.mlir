// A pass that fails leaves a reproducer: the module, with the command that fails on it.

// RUN: not steelyard-opt %s -p 'cse,scaled-select-kernels{target=cpu}' --mlir-pass-pipeline-crash-reproducer=%t.mlir 2>&1 | FileCheck %s
// CHECK: opt-reproducer.mlir:{{[0-9]+}}:8: error: 'scaled.matmul' op stays in high precision, which only a program of torch's tensors can run
// CHECK: note: a reproducer is in {{.*}}.mlir

// RUN: FileCheck %s --check-prefix=FILE < %t.mlir
// FILE: // {{RUN}}: steelyard-opt -p 'cse,scaled-select-kernels{target=cpu}' %s
// FILE: func.func @f

// RUN: not steelyard-opt %t.mlir -p 'cse,scaled-select-kernels{target=cpu}' --mlir-pass-pipeline-crash-reproducer=%t.2.mlir 2>&1 | FileCheck %s --check-prefix=AGAIN
// AGAIN: error: 'scaled.matmul' op stays in high precision, which only a program of torch's tensors can run

func.func @f(%dy: tensor<8x48xf32>, %w: tensor<48x64xf32>) -> tensor<8x64xf32> {
  %y = scaled.matmul dgrad %dy, %w at "mlp.up" : tensor<8x48xf32>, tensor<48x64xf32> -> tensor<8x64xf32>
  return %y : tensor<8x64xf32>
}
