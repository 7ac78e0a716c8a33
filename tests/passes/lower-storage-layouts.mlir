// RUN: steelyard-opt %s -p scaled-lower-storage | FileCheck %s

// Layouts of GPUs: only the parts that an op changes are given to its kernel. 33 rows are two blocks of 32, and 48
// columns of scales fill 128 of them.
// CHECK: func.func private @pad_0
// CHECK-SAME: scaled.config = {multiples = array<i64: 32, 16>, scheme = #mxfp8_32x1, shape = array<i64: 33, 40>, usage = "columnwise"}, scaled.kernel = "pad", scaled.operands = ["col.codes", "col.scales"], scaled.results = ["col.codes", "col.scales"]
// CHECK: func.func private @turn_0
// CHECK-SAME: scaled.operands = ["col.codes"], scaled.results = ["col.codes"]
// CHECK: func.func private @swizzle_0
// CHECK-SAME: scaled.operands = ["col.scales"], scaled.results = ["col.scales"]
// CHECK-LABEL: func.func @layouts
// CHECK: %[[P:.*]]:2 = call @pad_0(%arg0, %arg1) : (!torch.vtensor<[33,40],ui8>, !torch.vtensor<[2,40],ui8>) -> (!torch.vtensor<[64,48],ui8>, !torch.vtensor<[2,48],ui8>)
// CHECK-NEXT: %[[T:.*]] = call @turn_0(%[[P]]#0) : (!torch.vtensor<[64,48],ui8>) -> !torch.vtensor<[48,64],ui8>
// CHECK-NEXT: %[[S:.*]] = call @swizzle_0(%[[P]]#1) : (!torch.vtensor<[2,48],ui8>) -> !torch.vtensor<[128,4],ui8>
// CHECK-NEXT: return %[[T]], %[[S]]
func.func @layouts(%x: !scaled.tensor<3x11x40xf32, none, #mxfp8_32x1>) -> !scaled.tensor<64x48xf32, none, #mxfp8_32x1_gemm> {
  %0 = scaled.flatten %x : !scaled.tensor<3x11x40xf32, none, #mxfp8_32x1> -> !scaled.tensor<33x40xf32, none, #mxfp8_32x1>
  %1 = scaled.pad %0 to multiples(32, 16) : !scaled.tensor<33x40xf32, none, #mxfp8_32x1> -> !scaled.tensor<64x48xf32, none, #mxfp8_32x1>
  %2 = scaled.turn %1 : !scaled.tensor<64x48xf32, none, #mxfp8_32x1> -> !scaled.tensor<64x48xf32, none, #mxfp8_32x1_turned>
  %3 = scaled.swizzle %2 : !scaled.tensor<64x48xf32, none, #mxfp8_32x1_turned> -> !scaled.tensor<64x48xf32, none, #mxfp8_32x1_gemm>
  return %3 : !scaled.tensor<64x48xf32, none, #mxfp8_32x1_gemm>
}

// Scales that padding leaves alone are not given to it: 40 columns have as many blocks of 32 as 64. An amax never is.
// CHECK-LABEL: func.func @kept_parts
// CHECK: %[[C:.*]] = call @pad_1(%arg0) : (!torch.vtensor<[8,40],ui8>) -> !torch.vtensor<[8,64],ui8>
// CHECK: %[[N:.*]] = call @pad_2(%arg2) : (!torch.vtensor<[8,25],ui8>) -> !torch.vtensor<[8,32],ui8>
// CHECK: return %[[C]], %arg1, %[[N]], %arg3, %arg4
func.func @kept_parts(%x: !scaled.tensor<8x40xf32, #mxfp8_1x32>, %y: !scaled.tensor<8x50xf32, #nvfp4_1x16>) -> (!scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #nvfp4_1x16>) {
  %0 = scaled.pad %x to multiples(1, 32) : !scaled.tensor<8x40xf32, #mxfp8_1x32> -> !scaled.tensor<8x64xf32, #mxfp8_1x32>
  %1 = scaled.pad %y to multiples(1, 32) : !scaled.tensor<8x50xf32, #nvfp4_1x16> -> !scaled.tensor<8x64xf32, #nvfp4_1x16>
  return %0, %1 : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<8x64xf32, #nvfp4_1x16>
}

// Columns that are transformed are stored up to a multiple of 16: 50 of them fill what 64 do, and no kernel runs.
// CHECK-LABEL: func.func @filled_by_the_transform
// CHECK-NEXT: return %arg0, %arg1, %arg2
func.func @filled_by_the_transform(%x: !scaled.tensor<50x8xf32, none, #nvfp4_1x16_rht>) -> !scaled.tensor<64x8xf32, none, #nvfp4_1x16_rht> {
  %0 = scaled.pad %x to multiples(32, 1) : !scaled.tensor<50x8xf32, none, #nvfp4_1x16_rht> -> !scaled.tensor<64x8xf32, none, #nvfp4_1x16_rht>
  return %0 : !scaled.tensor<64x8xf32, none, #nvfp4_1x16_rht>
}

// Block scales of rows are turned, those of tiles padded to four.
// CHECK-LABEL: func.func @block_layouts
// CHECK: call @swizzle_{{.*}} : (!torch.vtensor<[20,2],f32>) -> !torch.vtensor<[2,20],f32>
// CHECK: call @swizzle_{{.*}} : (!torch.vtensor<[3,2],f32>) -> !torch.vtensor<[3,4],f32>
func.func @block_layouts(%x: !scaled.tensor<20x256xf32, #fp8_1x128>, %w: !scaled.tensor<384x256xf32, #fp8_128x128>) -> (!scaled.tensor<20x256xf32, #fp8_1x128_gemm>, !scaled.tensor<384x256xf32, #fp8_128x128_gemm>) {
  %0 = scaled.swizzle %x : !scaled.tensor<20x256xf32, #fp8_1x128> -> !scaled.tensor<20x256xf32, #fp8_1x128_gemm>
  %1 = scaled.swizzle %w : !scaled.tensor<384x256xf32, #fp8_128x128> -> !scaled.tensor<384x256xf32, #fp8_128x128_gemm>
  return %0, %1 : !scaled.tensor<20x256xf32, #fp8_1x128_gemm>, !scaled.tensor<384x256xf32, #fp8_128x128_gemm>
}

// CHECK-LABEL: func.func @epilogue
// CHECK: %[[E:.*]]:2 = call @epilogue_0(%arg0, %arg1, %arg2)
// CHECK: return %[[E]]#1, %[[E]]#0
func.func @epilogue(%x: !torch.vtensor<[8,32],f32>, %bias: !torch.vtensor<[32],bf16>, %residual: !torch.vtensor<[8,32],bf16>) -> (!torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>) {
  %0:2 = scaled.epilogue gelu %x bias(%bias) residual(%residual) : !torch.vtensor<[8,32],f32>, !torch.vtensor<[32],bf16>, !torch.vtensor<[8,32],bf16> -> !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>
  return %0#1, %0#0 : !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>
}
