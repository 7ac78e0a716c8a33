// RUN: steelyard-opt %s -p scaled-merge-quantize | FileCheck %s

// A rowwise and a columnwise copy of one tensor come from one pass over it.
// CHECK-LABEL: func.func @copies_of_one_tensor
// CHECK: %[[Q:.*]] = scaled.quantize {{\w+}} %arg0 {{.*}} -> !scaled.tensor<8x64xf32, #mxfp8_1x32, #mxfp8_32x1>
// CHECK-NOT: scaled.quantize
// CHECK: scaled.dequantize rowwise %[[Q]]
// CHECK: scaled.dequantize columnwise %[[Q]]
func.func @copies_of_one_tensor(%x: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
  %0 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<8x64xf32>
  %2 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, none, #mxfp8_32x1>
  %3 = scaled.dequantize columnwise %2 : !scaled.tensor<8x64xf32, none, #mxfp8_32x1> -> tensor<8x64xf32>
  return %1, %3 : tensor<8x64xf32>, tensor<8x64xf32>
}

// torch flattens the same tensor again for each linear layer.
// CHECK-LABEL: func.func @two_views_of_one_tensor
// CHECK-COUNT-1: scaled.quantize
// CHECK-NOT: scaled.quantize
// CHECK: return
func.func @two_views_of_one_tensor(%x: !torch.vtensor<[2,5,64],f32>) -> (!torch.vtensor<[10,64],f32>, !torch.vtensor<[10,64],f32>) {
  %ten = torch.constant.int 10
  %width = torch.constant.int 64
  %list = torch.prim.ListConstruct %ten, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %a = torch.aten.view %x, %list : !torch.vtensor<[2,5,64],f32>, !torch.list<int> -> !torch.vtensor<[10,64],f32>
  %0 = scaled.quantize input %a : !torch.vtensor<[10,64],f32> -> !scaled.tensor<10x64xf32, #mxfp8_1x32>
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<10x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,64],f32>
  %b = torch.aten.view %x, %list : !torch.vtensor<[2,5,64],f32>, !torch.list<int> -> !torch.vtensor<[10,64],f32>
  %2 = scaled.quantize input %b : !torch.vtensor<[10,64],f32> -> !scaled.tensor<10x64xf32, #mxfp8_1x32>
  %3 = scaled.dequantize rowwise %2 : !scaled.tensor<10x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,64],f32>
  return %1, %3 : !torch.vtensor<[10,64],f32>, !torch.vtensor<[10,64],f32>
}

// A view that changes the last dim is another tensor: its blocks are others.
// CHECK-LABEL: func.func @another_last_dim
// CHECK-COUNT-2: scaled.quantize
func.func @another_last_dim(%x: !torch.vtensor<[10,64],f32>) -> (!torch.vtensor<[10,64],f32>, !torch.vtensor<[20,32],f32>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[10,64],f32> -> !scaled.tensor<10x64xf32, #mxfp8_1x32>
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<10x64xf32, #mxfp8_1x32> -> !torch.vtensor<[10,64],f32>
  %rows = torch.constant.int 20
  %width = torch.constant.int 32
  %list = torch.prim.ListConstruct %rows, %width : (!torch.int, !torch.int) -> !torch.list<int>
  %b = torch.aten.view %x, %list : !torch.vtensor<[10,64],f32>, !torch.list<int> -> !torch.vtensor<[20,32],f32>
  %2 = scaled.quantize input %b : !torch.vtensor<[20,32],f32> -> !scaled.tensor<20x32xf32, #mxfp8_1x32>
  %3 = scaled.dequantize rowwise %2 : !scaled.tensor<20x32xf32, #mxfp8_1x32> -> !torch.vtensor<[20,32],f32>
  return %1, %3 : !torch.vtensor<[10,64],f32>, !torch.vtensor<[20,32],f32>
}

// Two formats for one usage stay apart.
// CHECK-LABEL: func.func @two_formats
// CHECK-COUNT-2: scaled.quantize
func.func @two_formats(%x: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
  %0 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.dequantize rowwise %0 : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<8x64xf32>
  %2 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #fp8_tensor>
  %3 = scaled.dequantize rowwise %2 : !scaled.tensor<8x64xf32, #fp8_tensor> -> tensor<8x64xf32>
  return %1, %3 : tensor<8x64xf32>, tensor<8x64xf32>
}

// Groups are merged like whole tensors; other groups, or none, are another quantization.
// CHECK-LABEL: func.func @groups
// CHECK: %[[X:.*]] = scaled.quantize input %arg0 ends(%arg1) {{.*}} -> !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32, #mxfp8_32x1>
// CHECK: scaled.grouped_gemm fprop %[[X]], %arg3
// CHECK: scaled.grouped_gemm wgrad %[[X]], %[[X]]
// CHECK: scaled.quantize input %arg0 ends(%arg2)
// CHECK: scaled.quantize input %arg0 : {{.*}} -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
// CHECK-NOT: scaled.quantize
func.func @groups(%x: tensor<8x64xf32>, %e: tensor<4xi32>, %f: tensor<4xi32>, %w: !scaled.tensor<4x48x64xf32 in 4, #mxfp8_1x32>) -> (tensor<8x48xf32>, tensor<4x64x64xf32>, !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>) {
  %0 = scaled.quantize input %x ends(%e) : tensor<8x64xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>
  %1 = scaled.grouped_gemm fprop %0, %w ends(%e) : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, !scaled.tensor<4x48x64xf32 in 4, #mxfp8_1x32>, tensor<4xi32> -> tensor<8x48xf32>
  %2 = scaled.quantize input %x ends(%e) : tensor<8x64xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, none, #mxfp8_32x1>
  %3 = scaled.grouped_gemm wgrad %2, %2 ends(%e) : !scaled.tensor<8x64xf32 in 4, none, #mxfp8_32x1>, !scaled.tensor<8x64xf32 in 4, none, #mxfp8_32x1>, tensor<4xi32> -> tensor<4x64x64xf32>
  %4 = scaled.quantize input %x ends(%f) : tensor<8x64xf32>, tensor<4xi32> -> !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>
  %5 = scaled.quantize input %x : tensor<8x64xf32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  return %1, %3, %4, %5 : tensor<8x48xf32>, tensor<4x64x64xf32>, !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #mxfp8_1x32>
}
