// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_90a}' | FileCheck %s --check-prefixes=CHECK,HOPPER
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_90a+cublaslt12.8}' | FileCheck %s --check-prefixes=CHECK,OLD
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_100a+cublaslt12.8}' | FileCheck %s --check-prefixes=CHECK,NEW
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_100a+cublaslt12.6}' | FileCheck %s --check-prefixes=CHECK,OLDER

// What a GPU has, torch's cuBLASLt may lack.
// CHECK-LABEL: func.func @block
// HOPPER: scaled.gemm {{.*}}scaled.path = "native"
// OLD: scaled.reason = "1x128 and 128x128 scales need cuBLASLt 12.9 or newer, and torch has 12.8"
func.func @block(%x: !scaled.tensor<128x256xbf16, #fp8_1x128>, %w: !scaled.tensor<128x256xbf16, #fp8_128x128>) -> (!torch.vtensor<[128,128],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<128x256xbf16, #fp8_1x128>, !scaled.tensor<128x256xbf16, #fp8_128x128> -> !torch.vtensor<[128,128],bf16>
  return %0 : !torch.vtensor<[128,128],bf16>
}

// CHECK-LABEL: func.func @mx
// NEW: scaled.gemm {{.*}}scaled.path = "native"
// OLDER: scaled.reason = "MX scales need cuBLASLt 12.8 or newer, and torch has 12.6"
func.func @mx(%x: !scaled.tensor<8x64xbf16, #mxfp8_1x32>, %w: !scaled.tensor<32x64xbf16, #mxfp8_1x32>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<8x64xbf16, #mxfp8_1x32>, !scaled.tensor<32x64xbf16, #mxfp8_1x32> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}

// CHECK-LABEL: func.func @nvfp4
// NEW: scaled.gemm {{.*}}scaled.path = "native"
// OLDER: scaled.reason = "FP4 needs cuBLASLt 12.8 or newer, and torch has 12.6"
func.func @nvfp4(%x: !scaled.tensor<8x64xbf16, #nvfp4_1x16>, %w: !scaled.tensor<32x64xbf16, #nvfp4_1x16>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<8x64xbf16, #nvfp4_1x16>, !scaled.tensor<32x64xbf16, #nvfp4_1x16> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}
