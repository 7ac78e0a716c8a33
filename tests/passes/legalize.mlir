// RUN: steelyard-opt %s -p 'scaled-legalize{target=cpu}' | FileCheck %s
// RUN: not steelyard-opt %s -p 'scaled-legalize{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of cpu, cuda:sm_89, cuda:sm_90a, cuda:sm_100a, cuda:sm_103a, cuda:sm_120a, cuda:sm_121a, got 'abacus'

// Kernels of the CPU take any shape: 7 and 33 need no padding.
// CHECK-LABEL: func.func @odd_sizes
// CHECK-NEXT: scaled.gemm {{\w+}} %arg0, %arg1
// CHECK-NEXT: return
func.func @odd_sizes(%x: !scaled.tensor<7x33xf32, #mxfp8_1x32>, %w: !scaled.tensor<5x33xf32, #mxfp8_1x32>) -> tensor<7x5xf32> {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<7x33xf32, #mxfp8_1x32>, !scaled.tensor<5x33xf32, #mxfp8_1x32> -> tensor<7x5xf32>
  return %0 : tensor<7x5xf32>
}
