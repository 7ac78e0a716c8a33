// RUN: not steelyard-opt %s --split-input-file -p scaled-plan-memory,scaled-lower-storage 2>&1 | FileCheck %s --check-prefix=PLANNED
// RUN: not steelyard-opt %s --split-input-file -p scaled-lower-storage 2>&1 | FileCheck %s --check-prefix=READ
// RUN: not steelyard-opt %s --split-input-file -p scaled-plan-memory,scaled-plan-memory 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: steelyard-opt /dev/null -p steelyard-raised,steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered

// PLANNED: 'scaled.free' op reads !scaled.tensor<8x64xf32, #mxfp8_1x32>, which only ops of the stage partitioned may do
// TWICE: 'scaled.free' op is there already: the memory of a module is planned once
func.func @planned(%x: !scaled.tensor<8x64xf32, #mxfp8_1x32>) -> tensor<8x64xf32> {
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<8x64xf32>
  return %0 : tensor<8x64xf32>
}

// -----

func.func private @other(!scaled.tensor<8x64xf32, #mxfp8_1x32>)
func.func @called(%x: !scaled.tensor<8x64xf32, #mxfp8_1x32>) {
  // READ: 'func.call' op reads !scaled.tensor<8x64xf32, #mxfp8_1x32>
  call @other(%x) : (!scaled.tensor<8x64xf32, #mxfp8_1x32>) -> ()
  return
}

// -----

// READ: 'func.func' op must have one block, got 2; branches are not compiled [input_c1]
func.func @branches() {
  cf.br ^bb1
^bb1:
  return
}

// -----

// READ: 'func.func' op scaled.sources must count arguments, of which there are 1, got [7] [input_c2]
func.func @sources(%w: tensor<8x64xf32> {scaled.parameter = "w", scaled.sources = array<i64: 7>}) {
  return
}

// -----

// READ: 'func.func' op must have tensors of at most 2^48 elements, got tensor<9223372036854775807x64xf32> [input_c3]
func.func @sizes(%x: tensor<9223372036854775807x64xf32>) {
  return
}

// -----

// READ: 'func.func' op must have tensors of at most 2^48 elements, got !scaled.tensor<0x562949953421312xf32, #mxfp8_1x32> [input_c3]
func.func private @empty(!scaled.tensor<0x562949953421312xf32, #mxfp8_1x32>)

// -----

// READ: 'func.func' op attribute 'scaled.parameter' must be a string, got 3 : i64 [stage_c5]
func.func @kind(%w: tensor<8x64xf32> {scaled.parameter = 3 : i64}) {
  return
}
