// RUN: steelyard-opt %s -p cse | FileCheck %s

// MLIR's own cse works on the dialect, because no op has side effects.

// CHECK-LABEL: func.func @same_quantize
// CHECK-COUNT-1: scaled.quantize
// CHECK-NOT: scaled.quantize
// CHECK: return
func.func @same_quantize(%x: tensor<8x64xf32>) -> (!scaled.tensor<8x64xf32, #nvfp4_1x16>, !scaled.tensor<8x64xf32, #nvfp4_1x16>) {
  %0 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #nvfp4_1x16>
  %1 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #nvfp4_1x16>
  return %0, %1 : !scaled.tensor<8x64xf32, #nvfp4_1x16>, !scaled.tensor<8x64xf32, #nvfp4_1x16>
}

// Random bits are operands: the same bits merge, other bits do not.
// CHECK-LABEL: func.func @random_bits
// CHECK-COUNT-2: scaled.quantize
// CHECK-NOT: scaled.quantize
// CHECK: return
func.func @random_bits(%x: tensor<8x64xf32>, %rng: tensor<2xi64>) -> (!scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>) {
  %next = scaled.advance_rng %rng : tensor<2xi64> -> tensor<2xi64>
  %0 = scaled.quantize grad_output %x rng(%rng) : tensor<8x64xf32>, tensor<2xi64> -> !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>
  %1 = scaled.quantize grad_output %x rng(%rng) : tensor<8x64xf32>, tensor<2xi64> -> !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>
  %2 = scaled.quantize grad_output %x rng(%next) : tensor<8x64xf32>, tensor<2xi64> -> !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>
  return %0, %1, %2 : !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<8x64xf32, #nvfp4_1x16_stochastic>
}
