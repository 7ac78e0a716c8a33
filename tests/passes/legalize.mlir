// RUN: steelyard-opt %s -p 'scaled-legalize{target=cpu}' | FileCheck %s
// RUN: not steelyard-opt %s -p 'scaled-legalize{target=abacus}' 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: target must be one of cpu, cuda:sm_89, cuda:sm_90a, cuda:sm_100a, cuda:sm_120a, got 'abacus'

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>

// Kernels of the CPU take any shape: 7 and 33 need no padding.
// CHECK-LABEL: func.func @odd_sizes
// CHECK-NEXT: "scaled.gemm"(%arg0, %arg1)
// CHECK-NEXT: return
func.func @odd_sizes(%x: !scaled.tensor<tensor<7x33xf32>, #mx, none>, %w: !scaled.tensor<tensor<5x33xf32>, #mx, none>) -> tensor<7x5xf32> {
  %0 = "scaled.gemm"(%x, %w) {kind = "fprop", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<7x33xf32>, #mx, none>, !scaled.tensor<tensor<5x33xf32>, #mx, none>) -> tensor<7x5xf32>
  return %0 : tensor<7x5xf32>
}
