// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_89}' | FileCheck %s --check-prefixes=CHECK,OLD,SM89
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_90a}' | FileCheck %s --check-prefixes=CHECK,OLD,SM90
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_100a}' | FileCheck %s --check-prefixes=CHECK,NEW,SM100
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_100a+nomslk}' | FileCheck %s --check-prefixes=CHECK,NEW,BARE
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_103a}' | FileCheck %s --check-prefixes=CHECK,NEW
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_120a}' | FileCheck %s --check-prefixes=CHECK,NEW
// RUN: steelyard-opt %s -p 'scaled-legalize{target=cuda:sm_121a}' | FileCheck %s --check-prefixes=CHECK,NEW

#own = #scaled.scheme<i8, "tensor", f32, {custom = "Mine"}>

// Sizes that fit are not padded: 8 rows of lhs are as good as any. Tensor cores before sm_100 know no MX scales.
// CHECK-LABEL: func.func @mx_fprop
// NEW-NEXT: %[[X:.*]] = scaled.narrow %arg0
// NEW-NEXT: %[[XS:.*]] = scaled.swizzle %[[X]] {{.*}} -> !scaled.tensor<8x64xbf16, #mxfp8_1x32_gemm>
// NEW-NEXT: %[[W:.*]] = scaled.narrow %arg1
// NEW-NEXT: %[[WS:.*]] = scaled.swizzle %[[W]]
// NEW-NEXT: %[[Y:.*]] = scaled.gemm {{\w+}} %[[XS]], %[[WS]] {{.*}}scaled.path = "native"}{{.*}} -> !torch.vtensor<[8,32],bf16>
// NEW-NEXT: return %[[Y]]
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "tensor cores read MX scales from sm_100 on"
// OLD-NEXT: return
func.func @mx_fprop(%x: !scaled.tensor<8x64xbf16, #mxfp8_1x32, #mxfp8_32x1>, %w: !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<8x64xbf16, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}

// The columns of w lie across the reduction, as no tensor core reads them.
// CHECK-LABEL: func.func @mx_dgrad
// NEW: %[[DY:.*]] = scaled.swizzle
// NEW-NEXT: %[[W:.*]] = scaled.narrow %arg1 {{.*}} -> !scaled.tensor<32x64xbf16, none, #mxfp8_32x1>
// NEW-NEXT: %[[WT:.*]] = scaled.turn %[[W]]
// NEW-NEXT: %[[WS:.*]] = scaled.swizzle %[[WT]]
// NEW-NEXT: scaled.gemm {{\w+}} %[[DY]], %[[WS]] {{.*}}scaled.path = "native"
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"
func.func @mx_dgrad(%dy: !scaled.tensor<8x32xbf16, #mxfp8_1x32, #mxfp8_32x1>, %w: !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1>) -> (!torch.vtensor<[8,64],bf16>) {
  %0 = scaled.gemm dgrad %dy, %w at "up" : !scaled.tensor<8x32xbf16, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,64],bf16>
  return %0 : !torch.vtensor<[8,64],bf16>
}

// Both operands are read by columns.
// CHECK-LABEL: func.func @mx_wgrad
// NEW: scaled.turn
// NEW: %[[DY:.*]] = scaled.swizzle
// NEW: scaled.turn
// NEW: %[[X:.*]] = scaled.swizzle
// NEW-NEXT: scaled.gemm {{\w+}} %[[DY]], %[[X]] {{.*}} -> !torch.vtensor<[32,64],bf16>
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"
func.func @mx_wgrad(%dy: !scaled.tensor<32x32xbf16, #mxfp8_1x32, #mxfp8_32x1>, %x: !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1>) -> (!torch.vtensor<[32,64],bf16>) {
  %0 = scaled.gemm wgrad %dy, %x at "up" : !scaled.tensor<32x32xbf16, #mxfp8_1x32, #mxfp8_32x1>, !scaled.tensor<32x64xbf16, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[32,64],bf16>
  return %0 : !torch.vtensor<[32,64],bf16>
}

// Padding is added before the swizzle, and leaves with the result. The emulating path takes any size.
// CHECK-LABEL: func.func @odd_sizes
// NEW-NEXT: %[[X:.*]] = scaled.pad %arg0 to multiples(1, 32) {{.*}} -> !scaled.tensor<7x64xbf16, #mxfp8_1x32>
// NEW-NEXT: %[[XS:.*]] = scaled.swizzle %[[X]]
// NEW-NEXT: %[[W:.*]] = scaled.pad %arg1 to multiples(16, 32) {{.*}} -> !scaled.tensor<16x64xbf16, #mxfp8_1x32>
// NEW-NEXT: %[[WS:.*]] = scaled.swizzle %[[W]]
// NEW-NEXT: %[[Y:.*]] = scaled.gemm {{\w+}} %[[XS]], %[[WS]] {{.*}} -> !torch.vtensor<[7,16],bf16>
// NEW-NEXT: scaled.unpad %[[Y]] {{.*}} -> !torch.vtensor<[7,5],bf16>
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1
// OLD-NEXT: return
func.func @odd_sizes(%x: !scaled.tensor<7x33xbf16, #mxfp8_1x32>, %w: !scaled.tensor<5x33xbf16, #mxfp8_1x32>) -> (!torch.vtensor<[7,5],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<7x33xbf16, #mxfp8_1x32>, !scaled.tensor<5x33xbf16, #mxfp8_1x32> -> !torch.vtensor<[7,5],bf16>
  return %0 : !torch.vtensor<[7,5],bf16>
}

// What two GEMMs read is converted once.
// CHECK-LABEL: func.func @shared
// NEW-NEXT: scaled.pad %arg0
// NEW-NEXT: %[[X:.*]] = scaled.swizzle
// NEW: scaled.gemm fprop %[[X]], {{.*}} at "q"
// NEW-NOT: scaled.pad %arg0
// NEW: scaled.gemm fprop %[[X]], {{.*}} at "k"
func.func @shared(%x: !scaled.tensor<8x48xbf16, #mxfp8_1x32>, %w: !scaled.tensor<16x48xbf16, #mxfp8_1x32>, %v: !scaled.tensor<16x48xbf16, #mxfp8_1x32>) -> (!torch.vtensor<[8,16],bf16>, !torch.vtensor<[8,16],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "q" : !scaled.tensor<8x48xbf16, #mxfp8_1x32>, !scaled.tensor<16x48xbf16, #mxfp8_1x32> -> !torch.vtensor<[8,16],bf16>
  %1 = scaled.gemm fprop %x, %v at "k" : !scaled.tensor<8x48xbf16, #mxfp8_1x32>, !scaled.tensor<16x48xbf16, #mxfp8_1x32> -> !torch.vtensor<[8,16],bf16>
  return %0, %1 : !torch.vtensor<[8,16],bf16>, !torch.vtensor<[8,16],bf16>
}

// Every target has FP8 with one scale per tensor, and adds a bias in the result's dtype.
// CHECK-LABEL: func.func @per_tensor
// CHECK-NEXT: %[[Y:.*]] = scaled.gemm {{\w+}} %arg0, %arg1 bias(%arg2) {{.*}}scaled.path = "native"
// CHECK-NEXT: return %[[Y]]
func.func @per_tensor(%x: !scaled.tensor<8x64xbf16, #fp8_tensor>, %w: !scaled.tensor<32x64xbf16, #fp8_tensor>, %bias: !torch.vtensor<[32],bf16>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w bias(%bias) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_tensor>, !torch.vtensor<[32],bf16> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}

// Scales of rows are applied after the sum, beside those of another row or of a tensor; nothing swizzles them.
// CHECK-LABEL: func.func @per_row
// CHECK-NEXT: scaled.gemm fprop %arg0, %arg1 {{.*}}scaled.path = "native"
// CHECK-NEXT: scaled.gemm fprop %arg2, %arg1 {{.*}}scaled.path = "native"
func.func @per_row(%x: !scaled.tensor<8x64xbf16, #fp8_row>, %w: !scaled.tensor<32x64xbf16, #fp8_row>, %t: !scaled.tensor<8x64xbf16, #fp8_tensor>) -> (!torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<8x64xbf16, #fp8_row>, !scaled.tensor<32x64xbf16, #fp8_row> -> !torch.vtensor<[8,32],bf16>
  %1 = scaled.gemm fprop %t, %w at "down" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_row> -> !torch.vtensor<[8,32],bf16>
  return %0, %1 : !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>
}

// Activations that are not quantized, and two formats, are emulated.
// CHECK-LABEL: func.func @mixed
// CHECK-NEXT: scaled.gemm fprop %arg0, %arg2 {{.*}}scaled.path = "emulated", scaled.reason = "torch has no product of a quantized weight and activations that are not quantized"
// CHECK-NEXT: scaled.gemm fprop %arg1, %arg2 {{.*}}scaled.path = "emulated", scaled.reason = "torch has no product of mx and mxfp4 operands"
func.func @mixed(%x: !torch.vtensor<[8,64],bf16>, %q: !scaled.tensor<8x64xbf16, #mxfp8_1x32>, %w: !scaled.tensor<32x64xbf16, #mxfp4_1x32>) -> (!torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !torch.vtensor<[8,64],bf16>, !scaled.tensor<32x64xbf16, #mxfp4_1x32> -> !torch.vtensor<[8,32],bf16>
  %1 = scaled.gemm fprop %q, %w at "down" : !scaled.tensor<8x64xbf16, #mxfp8_1x32>, !scaled.tensor<32x64xbf16, #mxfp4_1x32> -> !torch.vtensor<[8,32],bf16>
  return %0, %1 : !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>
}

// None multiplies E5M2 by E5M2.
// CHECK-LABEL: func.func @two_e5m2
// CHECK-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "cuBLASLt refuses E5M2 times E5M2"
func.func @two_e5m2(%dy: !scaled.tensor<32x64xbf16, none, #fp8_e5m2_tensor>, %x: !scaled.tensor<32x48xbf16, none, #fp8_e5m2_tensor>) -> (!torch.vtensor<[64,48],bf16>) {
  %0 = scaled.gemm wgrad %dy, %x at "up" : !scaled.tensor<32x64xbf16, none, #fp8_e5m2_tensor>, !scaled.tensor<32x48xbf16, none, #fp8_e5m2_tensor> -> !torch.vtensor<[64,48],bf16>
  return %0 : !torch.vtensor<[64,48],bf16>
}

// A bias in f32, an activation and a residual follow a product in f32.
// CHECK-LABEL: func.func @epilogues
// CHECK-NEXT: %[[A:.*]] = scaled.gemm {{\w+}} %arg0, %arg1 {{.*}} -> !torch.vtensor<[8,32],f32>
// CHECK-NEXT: %[[Y:.*]] = scaled.epilogue none %[[A]] bias(%arg2) {{.*}} -> !torch.vtensor<[8,32],bf16>
// CHECK-NEXT: %[[B:.*]] = scaled.gemm {{\w+}} %arg0, %arg1 {{.*}} -> !torch.vtensor<[8,32],f32>
// CHECK-NEXT: %[[G:.*]]:2 = scaled.epilogue gelu %[[B]] bias(%arg3) residual(%arg4)
// CHECK-NEXT: %[[C:.*]] = scaled.gemm {{\w+}} %arg0, %arg1
// CHECK-NEXT: %[[S:.*]] = scaled.epilogue none %[[C]] residual(%arg4)
// CHECK-NEXT: %[[D:.*]] = scaled.gemm {{\w+}} %arg0, %arg1
// CHECK-NEXT: %[[F:.*]] = scaled.epilogue none %[[D]] bias(%arg2)
// CHECK-NEXT: return %[[Y]], %[[G]]#0, %[[G]]#1, %[[S]], %[[F]]
func.func @epilogues(%x: !scaled.tensor<8x64xbf16, #fp8_tensor>, %w: !scaled.tensor<32x64xbf16, #fp8_tensor>, %bias: !torch.vtensor<[32],f32>, %half: !torch.vtensor<[32],bf16>, %residual: !torch.vtensor<[8,32],bf16>) -> (!torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],f32>) {
  %0 = scaled.gemm fprop %x, %w bias(%bias) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_tensor>, !torch.vtensor<[32],f32> -> !torch.vtensor<[8,32],bf16>
  %1:2 = scaled.gemm fprop %x, %w bias(%half) epilogue(gelu) residual(%residual) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_tensor>, !torch.vtensor<[32],bf16>, !torch.vtensor<[8,32],bf16> -> !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>
  %2 = scaled.gemm fprop %x, %w residual(%residual) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_tensor>, !torch.vtensor<[8,32],bf16> -> !torch.vtensor<[8,32],bf16>
  %3 = scaled.gemm fprop %x, %w bias(%bias) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<32x64xbf16, #fp8_tensor>, !torch.vtensor<[32],f32> -> !torch.vtensor<[8,32],f32>
  return %0, %1#0, %1#1, %2, %3 : !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],bf16>, !torch.vtensor<[8,32],f32>
}

// A bias is not padded: it is added once the padding has left.
// CHECK-LABEL: func.func @padded_bias
// CHECK-NEXT: %[[W:.*]] = scaled.pad %arg1 to multiples(16, 16)
// CHECK-NEXT: %[[Y:.*]] = scaled.gemm {{\w+}} %arg0, %[[W]] {{.*}} -> !torch.vtensor<[8,32],f32>
// CHECK-NEXT: %[[U:.*]] = scaled.unpad %[[Y]] {{.*}} -> !torch.vtensor<[8,30],f32>
// CHECK-NEXT: scaled.epilogue {{\w+}} %[[U]] bias(%arg2)
func.func @padded_bias(%x: !scaled.tensor<8x64xbf16, #fp8_tensor>, %w: !scaled.tensor<30x64xbf16, #fp8_tensor>, %bias: !torch.vtensor<[30],bf16>) -> (!torch.vtensor<[8,30],bf16>) {
  %0 = scaled.gemm fprop %x, %w bias(%bias) at "up" : !scaled.tensor<8x64xbf16, #fp8_tensor>, !scaled.tensor<30x64xbf16, #fp8_tensor>, !torch.vtensor<[30],bf16> -> !torch.vtensor<[8,30],bf16>
  return %0 : !torch.vtensor<[8,30],bf16>
}

// Block scales are Hopper's. Their rows are padded too.
// CHECK-LABEL: func.func @block
// SM90-NEXT: %[[X:.*]] = scaled.pad %arg0 to multiples(16, 128) {{.*}} -> !scaled.tensor<112x256xbf16,
// SM90-NEXT: %[[XS:.*]] = scaled.swizzle %[[X]]
// SM90-NEXT: %[[W:.*]] = scaled.pad %arg1 to multiples(128, 128) {{.*}} -> !scaled.tensor<128x256xbf16,
// SM90-NEXT: %[[WS:.*]] = scaled.swizzle %[[W]]
// SM90-NEXT: %[[Y:.*]] = scaled.gemm {{\w+}} %[[XS]], %[[WS]] {{.*}} -> !torch.vtensor<[112,128],bf16>
// SM90-NEXT: scaled.unpad %[[Y]] {{.*}} -> !torch.vtensor<[100,100],bf16>
// SM89-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "torch has 1x128 and 128x128 scales on sm_90 only"
// NEW-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "torch has 1x128 and 128x128 scales on sm_90 only"
func.func @block(%x: !scaled.tensor<100x256xbf16, #fp8_1x128>, %w: !scaled.tensor<100x256xbf16, #fp8_128x128>) -> (!torch.vtensor<[100,100],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<100x256xbf16, #fp8_1x128>, !scaled.tensor<100x256xbf16, #fp8_128x128> -> !torch.vtensor<[100,100],bf16>
  return %0 : !torch.vtensor<[100,100],bf16>
}

// Gradients in E5M2: torch takes them with one scale per tensor only.
// CHECK-LABEL: func.func @mx_hybrid
// NEW-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "torch multiplies E4M3 only with MX scales"
func.func @mx_hybrid(%dy: !scaled.tensor<8x64xbf16, #mxfp8_e5m2_1x32>, %w: !scaled.tensor<64x32xbf16, none, #mxfp8_32x1>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm dgrad %dy, %w at "up" : !scaled.tensor<8x64xbf16, #mxfp8_e5m2_1x32>, !scaled.tensor<64x32xbf16, none, #mxfp8_32x1> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}

// CHECK-LABEL: func.func @block_hybrid
// SM90-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"{{.*}}scaled.reason = "torch multiplies E4M3 only with 1x128 and 128x128 scales"
func.func @block_hybrid(%dy: !scaled.tensor<128x128xbf16, none, #fp8_e5m2_1x128>, %x: !scaled.tensor<128x128xbf16, none, #fp8_1x128>) -> (!torch.vtensor<[128,128],bf16>) {
  %0 = scaled.gemm wgrad %dy, %x at "up" : !scaled.tensor<128x128xbf16, none, #fp8_e5m2_1x128>, !scaled.tensor<128x128xbf16, none, #fp8_1x128> -> !torch.vtensor<[128,128],bf16>
  return %0 : !torch.vtensor<[128,128],bf16>
}

// Columns of FP4 are stored along the reduction already.
// CHECK-LABEL: func.func @nvfp4_wgrad
// NEW-NEXT: %[[DY:.*]] = scaled.pad %arg0 to multiples(32, 1) {{.*}} -> !scaled.tensor<64x48xbf16,
// NEW-NEXT: %[[DYS:.*]] = scaled.swizzle %[[DY]]
// NEW-NEXT: %[[X:.*]] = scaled.pad %arg1 to multiples(32, 16) {{.*}} -> !scaled.tensor<64x80xbf16,
// NEW-NEXT: %[[XS:.*]] = scaled.swizzle %[[X]]
// NEW-NEXT: scaled.gemm {{\w+}} %[[DYS]], %[[XS]] {{.*}} -> !torch.vtensor<[48,80],bf16>
// NEW-NEXT: return
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.reason = "tensor cores read FP4 from sm_100 on"
func.func @nvfp4_wgrad(%dy: !scaled.tensor<40x48xbf16, none, #nvfp4_1x16_rht>, %x: !scaled.tensor<40x80xbf16, none, #nvfp4_1x16_rht>) -> (!torch.vtensor<[48,80],bf16>) {
  %0 = scaled.gemm wgrad %dy, %x at "up" : !scaled.tensor<40x48xbf16, none, #nvfp4_1x16_rht>, !scaled.tensor<40x80xbf16, none, #nvfp4_1x16_rht> -> !torch.vtensor<[48,80],bf16>
  return %0 : !torch.vtensor<[48,80],bf16>
}

// One second scale per row has no native product.
// CHECK-LABEL: func.func @row_scaled
// NEW-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.reason = "cuBLASLt takes one second-level scale per tensor, not one per row"
// OLD-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"
func.func @row_scaled(%x: !scaled.tensor<8x64xbf16, #nvfp4_1x16_per_row>, %w: !scaled.tensor<32x64xbf16, #nvfp4_1x16>) -> (!torch.vtensor<[8,32],bf16>) {
  %0 = scaled.gemm fprop %x, %w at "up" : !scaled.tensor<8x64xbf16, #nvfp4_1x16_per_row>, !scaled.tensor<32x64xbf16, #nvfp4_1x16> -> !torch.vtensor<[8,32],bf16>
  return %0 : !torch.vtensor<[8,32],bf16>
}

// Products of batches are emulated.
// CHECK-LABEL: func.func @batched
// CHECK-NEXT: scaled.gemm {{\w+}} %arg0, %arg1 {{.*}}scaled.path = "emulated"
// CHECK-NEXT: return
func.func @batched(%q: !scaled.tensor<3x8x32xbf16, #mxfp8_1x32>, %k: !scaled.tensor<3x8x32xbf16, #mxfp8_1x32>) -> (!torch.vtensor<[3,8,8],bf16>) {
  %0 = scaled.gemm fprop %q, %k batch_dims(1) at "up" : !scaled.tensor<3x8x32xbf16, #mxfp8_1x32>, !scaled.tensor<3x8x32xbf16, #mxfp8_1x32> -> !torch.vtensor<[3,8,8],bf16>
  return %0 : !torch.vtensor<[3,8,8],bf16>
}

// A user's own quantizer multiplies as it likes.
// CHECK-LABEL: func.func @custom
// CHECK-NEXT: scaled.gemm {{\w+}} %arg0, %arg0 bias(%arg1)
// CHECK-NOT: scaled.path
// CHECK: return
func.func @custom(%x: !scaled.tensor<7x33xbf16, #own>, %bias: !torch.vtensor<[7],bf16>) -> (!torch.vtensor<[7,7],bf16>) {
  %0 = scaled.gemm fprop %x, %x bias(%bias) at "up" : !scaled.tensor<7x33xbf16, #own>, !scaled.tensor<7x33xbf16, #own>, !torch.vtensor<[7],bf16> -> !torch.vtensor<[7,7],bf16>
  return %0 : !torch.vtensor<[7,7],bf16>
}

// A GEMM on a GPU multiplies matrices; its result has its own dims again before anything else follows.
// CHECK-LABEL: func.func @three_dims
// CHECK: %[[X:.*]] = scaled.flatten %arg0 {{.*}} -> !scaled.tensor<8x48xbf16,
// CHECK: %[[Y:.*]] = scaled.gemm {{\w+}} %[[X]], {{.*}} -> !torch.vtensor<[8,32],f32>
// CHECK-NEXT: %[[U:.*]] = scaled.unpad %[[Y]] {{.*}} -> !torch.vtensor<[8,20],f32>
// CHECK: %[[R:.*]] = torch.aten.reshape %[[U]], {{.*}} -> !torch.vtensor<[2,4,20],f32>
// CHECK-NEXT: scaled.epilogue {{\w+}} %[[R]] bias(%arg2) {{.*}} -> !torch.vtensor<[2,4,20],bf16>
func.func @three_dims(%x: !scaled.tensor<2x4x48xbf16, #fp8_tensor>, %w: !scaled.tensor<20x48xbf16, #fp8_tensor>, %bias: !torch.vtensor<[20],bf16>) -> (!torch.vtensor<[2,4,20],bf16>) {
  %0 = scaled.gemm fprop %x, %w bias(%bias) at "up" : !scaled.tensor<2x4x48xbf16, #fp8_tensor>, !scaled.tensor<20x48xbf16, #fp8_tensor>, !torch.vtensor<[20],bf16> -> !torch.vtensor<[2,4,20],bf16>
  return %0 : !torch.vtensor<[2,4,20],bf16>
}

// Rows of lhs are not padded, so that those known only at run time are no matter.
// CHECK-LABEL: func.func @unknown_rows
// CHECK: %[[X:.*]] = scaled.narrow
// CHECK-NOT: scaled.pad %[[X]]
// CHECK: %[[Y:.*]] = scaled.gemm {{\w+}} %[[X]], {{.*}} -> !torch.vtensor<[?,32],bf16>
// CHECK: %[[M:.*]] = torch.aten.size.int %[[Y]], %int0
// CHECK-NEXT: scaled.unpad %[[Y]] sizes(%[[M]]) {{.*}} -> !torch.vtensor<[?,20],bf16>
func.func @unknown_rows(%x: !torch.vtensor<[?,48],bf16>, %w: !scaled.tensor<20x48xbf16, #fp8_tensor>) -> (!torch.vtensor<[?,20],bf16>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[?,48],bf16> -> !scaled.tensor<?x48xbf16, #fp8_tensor, #fp8_tensor>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<?x48xbf16, #fp8_tensor, #fp8_tensor>, !scaled.tensor<20x48xbf16, #fp8_tensor> -> !torch.vtensor<[?,20],bf16>
  return %1 : !torch.vtensor<[?,20],bf16>
}

// A reduction known only at run time is padded then.
// CHECK-LABEL: func.func @unknown_reduction
// CHECK-NEXT: %[[DY:.*]] = scaled.pad %arg0 to multiples(16, 1) {{.*}} -> !scaled.tensor<?x32xbf16,
// CHECK-NEXT: %[[X:.*]] = scaled.pad %arg1 to multiples(16, 16) {{.*}} -> !scaled.tensor<?x48xbf16,
// CHECK-NEXT: scaled.gemm {{\w+}} %[[DY]], %[[X]] {{.*}}scaled.path = "native"}{{.*}} -> !torch.vtensor<[32,48],bf16>
// CHECK-NEXT: return
func.func @unknown_reduction(%dy: !scaled.tensor<?x32xbf16, none, #fp8_e5m2_tensor>, %x: !scaled.tensor<?x48xbf16, none, #fp8_tensor>) -> (!torch.vtensor<[32,48],bf16>) {
  %0 = scaled.gemm wgrad %dy, %x at "up" : !scaled.tensor<?x32xbf16, none, #fp8_e5m2_tensor>, !scaled.tensor<?x48xbf16, none, #fp8_tensor> -> !torch.vtensor<[32,48],bf16>
  return %0 : !torch.vtensor<[32,48],bf16>
}

// Where rows are padded, the tensor that was quantized tells how many there are; where there is none, the GEMM is emulated.
// CHECK-LABEL: func.func @unknown_padded_rows
// SM90: %[[X:.*]] = scaled.pad %{{.*}} to multiples(16, 128)
// SM90: %[[Y:.*]] = scaled.gemm {{.*}} {scaled.path = "native"}
// SM90: %[[M:.*]] = torch.aten.size.int %arg0, %int0
// SM90-NEXT: scaled.unpad %[[Y]] sizes(%[[M]])
// SM90-NEXT: scaled.gemm {{\w+}} %arg2, %arg1 {{.*}}scaled.reason = "its result would be padded along a size that is known only at run time, and no tensor here tells it"
func.func @unknown_padded_rows(%x: !torch.vtensor<[?,128],bf16>, %w: !scaled.tensor<128x128xbf16, #fp8_128x128>, %saved: !scaled.tensor<?x128xbf16, #fp8_1x128>) -> (!torch.vtensor<[?,128],bf16>, !torch.vtensor<[?,128],bf16>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[?,128],bf16> -> !scaled.tensor<?x128xbf16, #fp8_1x128>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<?x128xbf16, #fp8_1x128>, !scaled.tensor<128x128xbf16, #fp8_128x128> -> !torch.vtensor<[?,128],bf16>
  %2 = scaled.gemm fprop %saved, %w at "up" : !scaled.tensor<?x128xbf16, #fp8_1x128>, !scaled.tensor<128x128xbf16, #fp8_128x128> -> !torch.vtensor<[?,128],bf16>
  return %1, %2 : !torch.vtensor<[?,128],bf16>, !torch.vtensor<[?,128],bf16>
}

// Several dims known only at run time are those of the tensor that was quantized.
// CHECK-LABEL: func.func @unknown_dims
// CHECK: scaled.flatten
// CHECK: %[[Y:.*]] = scaled.gemm {{.*}} -> !torch.vtensor<[?,32],bf16>
// CHECK: %[[A:.*]] = torch.aten.size.int %arg0, %int0
// CHECK: %[[B:.*]] = torch.aten.size.int %arg0, %int1
// CHECK: torch.prim.ListConstruct %[[A]], %[[B]], %int32
// CHECK: torch.aten.reshape %[[Y]]
func.func @unknown_dims(%x: !torch.vtensor<[?,?,48],bf16>, %w: !scaled.tensor<32x48xbf16, #fp8_tensor>) -> (!torch.vtensor<[?,?,32],bf16>) {
  %0 = scaled.quantize input %x : !torch.vtensor<[?,?,48],bf16> -> !scaled.tensor<?x?x48xbf16, #fp8_tensor>
  %1 = scaled.gemm fprop %0, %w at "up" : !scaled.tensor<?x?x48xbf16, #fp8_tensor>, !scaled.tensor<32x48xbf16, #fp8_tensor> -> !torch.vtensor<[?,?,32],bf16>
  return %1 : !torch.vtensor<[?,?,32],bf16>
}

// A weight's function returns each form that GEMMs read; whoever takes one of them takes them all, in order.
// CHECK-LABEL: func.func @forward
// NEW-SAME: %arg2: !scaled.tensor<48x96xbf16, #mxfp8_1x32_gemm> {scaled.parameter = "up.weight", scaled.sources = array<i64: 0>, scaled.weight = @weight_0}, %arg3: !scaled.tensor<64x80xbf16, none, #mxfp8_32x1_gemm> {{.*}}, %arg4
// NEW-NOT: (%arg2)
// NEW: scaled.gemm {{\w+}} %{{.*}}, %arg2
// OLD-SAME: %arg2: !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1>
func.func @forward(%w: !torch.vtensor<[40,72],bf16> {scaled.parameter = "up.weight"}, %x: !scaled.tensor<8x72xbf16, #mxfp8_1x32>, %qw: !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "up.weight", scaled.sources = array<i64: 0>, scaled.weight = @weight_0}, %last: !torch.vtensor<[8,40],bf16>) -> (!torch.vtensor<[8,40],bf16>, !torch.vtensor<[8,40],bf16>) {
  %0 = scaled.gemm fprop %x, %qw at "up" : !scaled.tensor<8x72xbf16, #mxfp8_1x32>, !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,40],bf16>
  return %0, %last : !torch.vtensor<[8,40],bf16>, !torch.vtensor<[8,40],bf16>
}
// CHECK-LABEL: func.func @backward
// NEW-SAME: %arg2: !scaled.tensor<48x96xbf16, #mxfp8_1x32_gemm> {{.*}}, %arg3: !scaled.tensor<64x80xbf16, none, #mxfp8_32x1_gemm>
// NEW: scaled.gemm {{\w+}} %{{.*}}, %arg3
func.func @backward(%w: !torch.vtensor<[40,72],bf16> {scaled.parameter = "up.weight"}, %dy: !scaled.tensor<8x40xbf16, #mxfp8_1x32>, %qw: !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1> {scaled.parameter = "up.weight", scaled.sources = array<i64: 0>, scaled.weight = @weight_0}) -> !torch.vtensor<[8,72],bf16> {
  %0 = scaled.gemm dgrad %dy, %qw at "up" : !scaled.tensor<8x40xbf16, #mxfp8_1x32>, !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1> -> !torch.vtensor<[8,72],bf16>
  return %0 : !torch.vtensor<[8,72],bf16>
}
// CHECK-LABEL: func.func private @weight_0
// NEW: %[[Q:.*]] = scaled.quantize {{\w+}} %arg0
// NEW-NEXT: %[[ROW:.*]] = scaled.narrow %[[Q]]
// NEW-NEXT: %[[RP:.*]] = scaled.pad %[[ROW]]
// NEW-NEXT: %[[RS:.*]] = scaled.swizzle %[[RP]]
// NEW-NEXT: %[[COL:.*]] = scaled.narrow %[[Q]]
// NEW-NEXT: %[[CP:.*]] = scaled.pad %[[COL]]
// NEW-NEXT: %[[CT:.*]] = scaled.turn %[[CP]]
// NEW-NEXT: %[[CS:.*]] = scaled.swizzle %[[CT]]
// NEW-NEXT: return %[[RS]], %[[CS]]
// OLD: %[[Q:.*]] = scaled.quantize {{\w+}} %arg0
// OLD-NEXT: return %[[Q]]
func.func private @weight_0(%w: !torch.vtensor<[40,72],bf16> {scaled.parameter = "up.weight"}) -> !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1> {
  %0 = scaled.quantize weight %w : !torch.vtensor<[40,72],bf16> -> !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1>
  return %0 : !scaled.tensor<40x72xbf16, #mxfp8_1x32, #mxfp8_32x1>
}

// What something else reads stays beside it, and so does an amax.
// CHECK-LABEL: func.func @decoded
// CHECK-SAME: %arg2: !scaled.tensor<40x72xbf16, #fp8_tensor> {{.*}}, %arg3: !scaled.tensor<48x80xbf16, #fp8_tensor> {{.*}}, %arg4: !torch.vtensor<[],f32>
// CHECK: scaled.gemm {{\w+}} %{{.*}}, %arg3
// CHECK: scaled.dequantize {{\w+}} %arg2
func.func @decoded(%w: !torch.vtensor<[40,72],bf16> {scaled.parameter = "up.weight"}, %x: !scaled.tensor<8x72xbf16, #fp8_tensor>, %qw: !scaled.tensor<40x72xbf16, #fp8_tensor> {scaled.parameter = "up.weight", scaled.sources = array<i64: 0>, scaled.weight = @weight_1}, %amax: !torch.vtensor<[],f32> {scaled.parameter = "up.weight", scaled.sources = array<i64: 0>, scaled.weight = @weight_1}) -> (!torch.vtensor<[8,40],bf16>, !torch.vtensor<[40,72],bf16>, !torch.vtensor<[],f32>) {
  %0 = scaled.gemm fprop %x, %qw at "up" : !scaled.tensor<8x72xbf16, #fp8_tensor>, !scaled.tensor<40x72xbf16, #fp8_tensor> -> !torch.vtensor<[8,40],bf16>
  %1 = scaled.dequantize rowwise %qw : !scaled.tensor<40x72xbf16, #fp8_tensor> -> !torch.vtensor<[40,72],bf16>
  return %0, %1, %amax : !torch.vtensor<[8,40],bf16>, !torch.vtensor<[40,72],bf16>, !torch.vtensor<[],f32>
}
// CHECK-LABEL: func.func private @weight_1
// CHECK: %[[Q:.*]]:2 = scaled.quantize {{\w+}} %arg0
// CHECK: %[[P:.*]] = scaled.pad %[[Q]]#0
// CHECK: return %[[Q]]#0, %[[P]], %[[Q]]#1
func.func private @weight_1(%w: !torch.vtensor<[40,72],bf16> {scaled.parameter = "up.weight"}) -> (!scaled.tensor<40x72xbf16, #fp8_tensor>, !torch.vtensor<[],f32>) {
  %0, %1 = scaled.quantize weight %w : !torch.vtensor<[40,72],bf16> -> !scaled.tensor<40x72xbf16, #fp8_tensor>, !torch.vtensor<[],f32>
  return %0, %1 : !scaled.tensor<40x72xbf16, #fp8_tensor>, !torch.vtensor<[],f32>
}

// Experts: groups of rows of MX operands are native on sm_100, if torch was built for that. Elsewhere they are multiplied
// in bf16, which torch does at once on sm_90 and sm_100. Groups in FP8 are native on sm_90, but for the gradient of
// weights, which reduces over any number of rows.
// CHECK-LABEL: func.func @experts
// OLD: scaled.grouped_gemm fprop %arg0, %arg1 {{.*}}scaled.path = "emulated", scaled.reason = "torch has products of groups in MXFP8 on sm_100 only
// SM90-SAME: "}
// SM89-SAME: ; the host reads where groups end and multiplies one by one"}
// SM100: scaled.grouped_gemm fprop %arg0, %arg1 {{.*}}{scaled.path = "native"}
// BARE: scaled.grouped_gemm fprop %arg0, %arg1 {{.*}}scaled.reason = "this build of torch has no products of groups in MXFP8: it was built without MSLK"}
// SM90: scaled.grouped_gemm fprop %arg2, %arg3 {{.*}}{scaled.path = "native"}
// NEW: scaled.grouped_gemm fprop %arg2, %arg3 {{.*}}scaled.reason = "torch has products of groups in FP8 on sm_90 only; the host reads
// SM90: scaled.grouped_gemm wgrad %arg2, %arg2 {{.*}}scaled.reason = "torch's product of groups in FP8 reduces over multiples of 16 rows, and experts have any number; the host
func.func @experts(%x: !scaled.tensor<64x32xbf16 in 4, #mxfp8_1x32>, %w: !scaled.tensor<4x48x32xbf16 in 4, #mxfp8_1x32>, %y: !scaled.tensor<64x32xbf16 in 4, #fp8_tensor, #fp8_tensor>, %v: !scaled.tensor<4x48x32xbf16 in 4, #fp8_tensor>, %ends: !torch.vtensor<[4],si32>) -> (!torch.vtensor<[64,48],bf16>, !torch.vtensor<[64,48],bf16>, !torch.vtensor<[4,32,32],bf16>) {
  %0 = scaled.grouped_gemm fprop %x, %w ends(%ends) at "up" : !scaled.tensor<64x32xbf16 in 4, #mxfp8_1x32>, !scaled.tensor<4x48x32xbf16 in 4, #mxfp8_1x32>, !torch.vtensor<[4],si32> -> !torch.vtensor<[64,48],bf16>
  %1 = scaled.grouped_gemm fprop %y, %v ends(%ends) at "down" : !scaled.tensor<64x32xbf16 in 4, #fp8_tensor, #fp8_tensor>, !scaled.tensor<4x48x32xbf16 in 4, #fp8_tensor>, !torch.vtensor<[4],si32> -> !torch.vtensor<[64,48],bf16>
  %2 = scaled.grouped_gemm wgrad %y, %y ends(%ends) at "down" : !scaled.tensor<64x32xbf16 in 4, #fp8_tensor, #fp8_tensor>, !scaled.tensor<64x32xbf16 in 4, #fp8_tensor, #fp8_tensor>, !torch.vtensor<[4],si32> -> !torch.vtensor<[4,32,32],bf16>
  return %0, %1, %2 : !torch.vtensor<[64,48],bf16>, !torch.vtensor<[64,48],bf16>, !torch.vtensor<[4,32,32],bf16>
}
