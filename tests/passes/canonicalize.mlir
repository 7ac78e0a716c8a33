// RUN: steelyard-opt %s -p scaled-canonicalize | FileCheck %s

// CHECK-LABEL: func.func @transpose_of_transpose
// CHECK-NEXT: return %arg0
func.func @transpose_of_transpose(%x: !scaled.tensor<8x16xf32, #fp8_tensor>) -> !scaled.tensor<8x16xf32, #fp8_tensor> {
  %0 = scaled.transpose %x : !scaled.tensor<8x16xf32, #fp8_tensor> -> !scaled.tensor<8x16xf32, none, #fp8_tensor>
  %1 = scaled.transpose %0 : !scaled.tensor<8x16xf32, none, #fp8_tensor> -> !scaled.tensor<8x16xf32, #fp8_tensor>
  return %1 : !scaled.tensor<8x16xf32, #fp8_tensor>
}

// The first of three is what is left.
// CHECK-LABEL: func.func @three_transposes
// CHECK-NEXT: %[[T:.*]] = scaled.transpose %arg0
// CHECK-NEXT: return %[[T]]
func.func @three_transposes(%x: !scaled.tensor<8x16xf32, #fp8_tensor>) -> !scaled.tensor<8x16xf32, none, #fp8_tensor> {
  %0 = scaled.transpose %x : !scaled.tensor<8x16xf32, #fp8_tensor> -> !scaled.tensor<8x16xf32, none, #fp8_tensor>
  %1 = scaled.transpose %0 : !scaled.tensor<8x16xf32, none, #fp8_tensor> -> !scaled.tensor<8x16xf32, #fp8_tensor>
  %2 = scaled.transpose %1 : !scaled.tensor<8x16xf32, #fp8_tensor> -> !scaled.tensor<8x16xf32, none, #fp8_tensor>
  return %2 : !scaled.tensor<8x16xf32, none, #fp8_tensor>
}

// CHECK-LABEL: func.func @empty_pad
// CHECK-NEXT: return %arg0, %arg1
func.func @empty_pad(%x: tensor<32x64xf32>, %y: tensor<?x64xf32>) -> (tensor<32x64xf32>, tensor<?x64xf32>) {
  %0 = scaled.pad %x to multiples(16, 32) : tensor<32x64xf32> -> tensor<32x64xf32>
  %1 = scaled.pad %y to multiples(1, 32) : tensor<?x64xf32> -> tensor<?x64xf32>
  return %0, %1 : tensor<32x64xf32>, tensor<?x64xf32>
}

// A size known only at run time may need padding.
// CHECK-LABEL: func.func @pad_that_may_add
// CHECK-NEXT: scaled.pad
func.func @pad_that_may_add(%y: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %1 = scaled.pad %y to multiples(16, 32) : tensor<?x64xf32> -> tensor<?x64xf32>
  return %1 : tensor<?x64xf32>
}

// CHECK-LABEL: func.func @unpad_of_pad
// CHECK-NEXT: return %arg0
func.func @unpad_of_pad(%x: tensor<30x60xf32>) -> tensor<30x60xf32> {
  %0 = scaled.pad %x to multiples(16, 32) : tensor<30x60xf32> -> tensor<32x64xf32>
  %1 = scaled.unpad %0 : tensor<32x64xf32> -> tensor<30x60xf32>
  return %1 : tensor<30x60xf32>
}

// CHECK-LABEL: func.func @unpad_of_pad_of_codes
// CHECK-NEXT: return %arg0
func.func @unpad_of_pad_of_codes(%x: !scaled.tensor<30x60xf32, #mxfp8_1x32>) -> !scaled.tensor<30x60xf32, #mxfp8_1x32> {
  %0 = scaled.pad %x to multiples(16, 32) : !scaled.tensor<30x60xf32, #mxfp8_1x32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %1 = scaled.unpad %0 : !scaled.tensor<32x64xf32, #mxfp8_1x32> -> !scaled.tensor<30x60xf32, #mxfp8_1x32>
  return %1 : !scaled.tensor<30x60xf32, #mxfp8_1x32>
}

// An unpad to other sizes than the pad's source had is no inverse.
// CHECK-LABEL: func.func @unpad_to_less
// CHECK: scaled.pad
// CHECK: scaled.unpad
func.func @unpad_to_less(%x: tensor<30x60xf32>) -> tensor<29x60xf32> {
  %0 = scaled.pad %x to multiples(16, 32) : tensor<30x60xf32> -> tensor<32x64xf32>
  %1 = scaled.unpad %0 : tensor<32x64xf32> -> tensor<29x60xf32>
  return %1 : tensor<29x60xf32>
}

// CHECK-LABEL: func.func @dynamic_unpad_of_pad
// CHECK: return %arg0
func.func @dynamic_unpad_of_pad(%x: tensor<?x60xf32>) -> tensor<?x60xf32> {
  %zero = arith.constant 0 : index
  %size = tensor.dim %x, %zero : tensor<?x60xf32>
  %0 = scaled.pad %x to multiples(16, 32) : tensor<?x60xf32> -> tensor<?x64xf32>
  %1 = scaled.unpad %0 sizes(%size) : tensor<?x64xf32>, index -> tensor<?x60xf32>
  return %1 : tensor<?x60xf32>
}

// CHECK-LABEL: func.func @dynamic_unpad_of_pad_torch
// CHECK: return %arg0
func.func @dynamic_unpad_of_pad_torch(%x: !torch.vtensor<[60,?],f32>) -> !torch.vtensor<[60,?],f32> {
  %one = torch.constant.int 1
  %size = torch.aten.size.int %x, %one : !torch.vtensor<[60,?],f32>, !torch.int -> !torch.int
  %0 = scaled.pad %x to multiples(32, 16) : !torch.vtensor<[60,?],f32> -> !torch.vtensor<[64,?],f32>
  %1 = scaled.unpad %0 sizes(%size) : !torch.vtensor<[64,?],f32>, !torch.int -> !torch.vtensor<[60,?],f32>
  return %1 : !torch.vtensor<[60,?],f32>
}

// The size of another dim, or from elsewhere, proves nothing.
// CHECK-LABEL: func.func @dynamic_unpad_of_unknown_size
// CHECK: scaled.pad
// CHECK: scaled.unpad
// CHECK: scaled.unpad
func.func @dynamic_unpad_of_unknown_size(%x: tensor<?x?xf32>, %size: index) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %zero = arith.constant 0 : index
  %rows = tensor.dim %x, %zero : tensor<?x?xf32>
  %0 = scaled.pad %x to multiples(16, 32) : tensor<?x?xf32> -> tensor<?x?xf32>
  %1 = scaled.unpad %0 sizes(%rows, %rows) : tensor<?x?xf32>, index, index -> tensor<?x?xf32>
  %2 = scaled.unpad %0 sizes(%rows, %size) : tensor<?x?xf32>, index, index -> tensor<?x?xf32>
  return %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}

// CHECK-LABEL: func.func @empty_unpad
// CHECK-NEXT: return %arg0
func.func @empty_unpad(%x: tensor<30x60xf32>) -> tensor<30x60xf32> {
  %0 = scaled.unpad %x : tensor<30x60xf32> -> tensor<30x60xf32>
  return %0 : tensor<30x60xf32>
}

// Decoding what was encoded is lossy: it stays.
// CHECK-LABEL: func.func @dequantize_of_quantize
// CHECK: scaled.quantize
// CHECK: scaled.dequantize
func.func @dequantize_of_quantize(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %0 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<8x64xf32>
  return %1 : tensor<8x64xf32>
}

// No op has side effects, so one that nobody reads goes.
// CHECK-LABEL: func.func @dead
// CHECK-NEXT: return
func.func @dead(%x: tensor<8x64xf32>, %rng: tensor<2xi64>) {
  %0 = scaled.amax %x : tensor<8x64xf32> -> tensor<f32>
  %1 = scaled.advance_rng %rng : tensor<2xi64> -> tensor<2xi64>
  return
}
