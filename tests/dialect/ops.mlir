// RUN: steelyard-opt %s | steelyard-opt | FileCheck %s
// RUN: steelyard-opt %s --emit-bytecode | steelyard-opt | FileCheck %s
// RUN: steelyard-opt %s -o %t.1 && steelyard-opt %t.1 -o %t.2 && diff %t.1 %t.2
// RUN: steelyard-opt %s --mlir-print-local-scope | steelyard-opt -o %t.3 && diff %t.1 %t.3
// RUN: steelyard-opt %s --mlir-print-op-generic -o %t.4 && steelyard-opt %t.4 -o %t.5 && diff %t.1 %t.5

// Every op, on builtin and torch tensors, with static and dynamic dims, through text in both forms and bytecode.

#int8 = #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>

// CHECK-LABEL: func.func @matmul
func.func @matmul(%x: tensor<2x?x64xbf16>, %w: tensor<48x64xbf16>, %dy: tensor<2x?x48xbf16>, %b: tensor<48xbf16>) {
  // CHECK: %{{.*}} = scaled.matmul fprop %arg0, %arg1 bias(%arg3) at "mlp.up" : tensor<2x?x64xbf16>, tensor<48x64xbf16>, tensor<48xbf16> -> tensor<2x?x48xbf16>
  %y = scaled.matmul fprop %x, %w bias(%b) at "mlp.up" : tensor<2x?x64xbf16>, tensor<48x64xbf16>, tensor<48xbf16> -> tensor<2x?x48xbf16>
  // CHECK: %{{.*}} = scaled.matmul dgrad %arg2, %arg1 at "mlp.up" : tensor<2x?x48xbf16>, tensor<48x64xbf16> -> tensor<2x?x64xbf16>
  %dx = scaled.matmul dgrad %dy, %w at "mlp.up" : tensor<2x?x48xbf16>, tensor<48x64xbf16> -> tensor<2x?x64xbf16>
  // CHECK: %{{.*}} = scaled.matmul wgrad %arg2, %arg0 at "mlp.up" : tensor<2x?x48xbf16>, tensor<2x?x64xbf16> -> tensor<48x64xf32>
  %dw = scaled.matmul wgrad %dy, %x at "mlp.up" : tensor<2x?x48xbf16>, tensor<2x?x64xbf16> -> tensor<48x64xf32>
  return
}

// CHECK-LABEL: func.func @batched_and_single_row
func.func @batched_and_single_row(%q: !torch.vtensor<[2,12,?,64],f32>, %k: !torch.vtensor<[2,12,?,64],f32>, %x: !torch.vtensor<[64],f16>, %w: !torch.vtensor<[10,64],f16>) {
  // CHECK: %{{.*}} = scaled.matmul fprop %arg0, %arg1 batch_dims(2) at "attention" : !torch.vtensor<[2,12,?,64],f32>, !torch.vtensor<[2,12,?,64],f32> -> !torch.vtensor<[2,12,?,?],f32>
  %s = scaled.matmul fprop %q, %k batch_dims(2) at "attention" : !torch.vtensor<[2,12,?,64],f32>, !torch.vtensor<[2,12,?,64],f32> -> !torch.vtensor<[2,12,?,?],f32>
  // CHECK: %{{.*}} = scaled.matmul fprop %arg2, %arg3 at "head" : !torch.vtensor<[64],f16>, !torch.vtensor<[10,64],f16> -> !torch.vtensor<[10],f16>
  %y = scaled.matmul fprop %x, %w at "head" : !torch.vtensor<[64],f16>, !torch.vtensor<[10,64],f16> -> !torch.vtensor<[10],f16>
  return
}

// CHECK-LABEL: func.func @grouped
func.func @grouped(%x: !torch.vtensor<[?,64],bf16>, %w: !torch.vtensor<[4,48,64],bf16>, %dy: !torch.vtensor<[?,48],bf16>, %e: !torch.vtensor<[4],si32>) {
  // CHECK: %{{.*}} = scaled.grouped_matmul fprop %arg0, %arg1 ends(%arg3) at "experts.up" : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[?,48],bf16>
  %y = scaled.grouped_matmul fprop %x, %w ends(%e) at "experts.up" : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[?,48],bf16>
  // CHECK: %{{.*}} = scaled.grouped_matmul dgrad %arg2, %arg1 ends(%arg3) {{.*}} -> !torch.vtensor<[?,64],bf16>
  %dx = scaled.grouped_matmul dgrad %dy, %w ends(%e) : !torch.vtensor<[?,48],bf16>, !torch.vtensor<[4,48,64],bf16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[?,64],bf16>
  // CHECK: %{{.*}} = scaled.grouped_matmul wgrad %arg2, %arg0 ends(%arg3) {{.*}} -> !torch.vtensor<[4,48,64],f32>
  %dw = scaled.grouped_matmul wgrad %dy, %x ends(%e) : !torch.vtensor<[?,48],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4],si32> -> !torch.vtensor<[4,48,64],f32>
  // Rows in groups, and a stack of weights, one per group.
  // CHECK: %[[X:.*]] = scaled.quantize input %arg0 ends(%arg3) : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4],si32> -> !scaled.tensor<?x64xbf16 in 4, #nvfp4_1x16, #nvfp4_1x16_rht>
  %0 = scaled.quantize input %x ends(%e) : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[4],si32> -> !scaled.tensor<?x64xbf16 in 4, #nvfp4_1x16, #nvfp4_1x16_rht>
  // CHECK: %[[W:.*]] = scaled.quantize weight %arg1 : !torch.vtensor<[4,48,64],bf16> -> !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16>
  %1 = scaled.quantize weight %w : !torch.vtensor<[4,48,64],bf16> -> !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16>
  // CHECK: %[[P:.*]] = scaled.pack %[[W]] : !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16> -> !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16_packed>
  %2 = scaled.pack %1 : !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16> -> !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16_packed>
  // CHECK: %{{.*}} = scaled.grouped_gemm fprop %[[X]], %[[P]] ends(%arg3) at "experts.up" : !scaled.tensor<?x64xbf16 in 4, #nvfp4_1x16, #nvfp4_1x16_rht>, !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16_packed>, !torch.vtensor<[4],si32> -> !torch.vtensor<[?,48],bf16>
  %3 = scaled.grouped_gemm fprop %0, %2 ends(%e) at "experts.up" : !scaled.tensor<?x64xbf16 in 4, #nvfp4_1x16, #nvfp4_1x16_rht>, !scaled.tensor<4x48x64xbf16 in 4, #nvfp4_16x16_packed>, !torch.vtensor<[4],si32> -> !torch.vtensor<[?,48],bf16>
  return
}

// CHECK-LABEL: func.func @quantize
func.func @quantize(%x: !torch.vtensor<[?,64],f32>, %scale: !torch.vtensor<[],f32>, %rng: !torch.vtensor<[2],si64>) {
  // CHECK: %{{.*}}:2 = scaled.quantize input %arg0 scale(%arg1) at "mlp.up" : !torch.vtensor<[?,64],f32>, !torch.vtensor<[],f32> -> !scaled.tensor<?x64xf32, #fp8_tensor_delayed, #fp8_tensor_delayed>, !torch.vtensor<[],f32>
  %0:2 = scaled.quantize input %x scale(%scale) at "mlp.up" : !torch.vtensor<[?,64],f32>, !torch.vtensor<[],f32> -> !scaled.tensor<?x64xf32, #fp8_tensor_delayed, #fp8_tensor_delayed>, !torch.vtensor<[],f32>
  // CHECK: %{{.*}} = scaled.quantize weight %arg0 : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #nvfp4_1x16>
  %1 = scaled.quantize weight %x : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #nvfp4_1x16>
  // A gradient: both copies rounded stochastically, the columnwise one transformed.
  // CHECK: %{{.*}} = scaled.quantize grad_output %arg0 rng(%arg2) : !torch.vtensor<[?,64],f32>, !torch.vtensor<[2],si64> -> !scaled.tensor<?x64xf32, #nvfp4_1x16_stochastic, #nvfp4_1x16_stochastic_rht>
  %2 = scaled.quantize grad_output %x rng(%rng) : !torch.vtensor<[?,64],f32>, !torch.vtensor<[2],si64> -> !scaled.tensor<?x64xf32, #nvfp4_1x16_stochastic, #nvfp4_1x16_stochastic_rht>
  // A hybrid: one format rowwise, another columnwise.
  // CHECK: %{{.*}} = scaled.quantize input %arg0 : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #mxfp8_1x32_floor, #fp8_e5m2_tensor>
  %3 = scaled.quantize input %x : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #mxfp8_1x32_floor, #fp8_e5m2_tensor>
  // CHECK: %{{.*}}:2 = scaled.quantize input %arg0 : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #nvfp4_1x16_per_row>, !torch.vtensor<[?],f32>
  %4:2 = scaled.quantize input %x : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #nvfp4_1x16_per_row>, !torch.vtensor<[?],f32>
  // CHECK: %{{.*}} = scaled.quantize input %arg0 : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>>
  %5 = scaled.quantize input %x : !torch.vtensor<[?,64],f32> -> !scaled.tensor<?x64xf32, #int8>
  return
}

// CHECK-LABEL: func.func @produce_quantize
func.func @produce_quantize(%x: !torch.vtensor<[?,64],bf16>, %w: !torch.vtensor<[64],f32>, %b: !torch.vtensor<[64],f32>, %scale: !torch.vtensor<[],f32>) {
  // CHECK: %{{.*}} = scaled.produce_quantize input layer_norm %arg0 weight(%arg1) bias(%arg2) epsilon(1.000000e-05) : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[64],f32>, !torch.vtensor<[64],f32> -> !scaled.tensor<?x64xbf16, #mxfp8_1x32, #mxfp8_32x1>
  %0 = scaled.produce_quantize input layer_norm %x weight(%w) bias(%b) epsilon(1.0e-05) : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[64],f32>, !torch.vtensor<[64],f32> -> !scaled.tensor<?x64xbf16, #mxfp8_1x32, #mxfp8_32x1>
  // CHECK: %{{.*}} = scaled.produce_quantize input silu_and_multiply %arg0 other(%arg0) scale(%arg3) at "mlp.down" : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[],f32> -> !scaled.tensor<?x64xbf16, #fp8_tensor_delayed>
  %1 = scaled.produce_quantize input silu_and_multiply %x other(%x) scale(%scale) at "mlp.down" : !torch.vtensor<[?,64],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[],f32> -> !scaled.tensor<?x64xbf16, #fp8_tensor_delayed>
  return
}

// CHECK-LABEL: func.func @gemm
func.func @gemm(%x: !scaled.tensor<33x200xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, %w: !scaled.tensor<50x200xf32, #fp8_128x128_power_of_two, #fp8_128x128_power_of_two>, %dy: !scaled.tensor<33x50xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, %b: tensor<50xf32>, %r: tensor<33x50xf32>) {
  // CHECK: %{{.*}}:2 = scaled.gemm fprop %arg0, %arg1 bias(%arg3) epilogue(gelu) residual(%arg4) at "l" : !scaled.tensor<33x200xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<50x200xf32, #fp8_128x128_power_of_two, #fp8_128x128_power_of_two>, tensor<50xf32>, tensor<33x50xf32> -> tensor<33x50xf32>, tensor<33x50xf32>
  %y:2 = scaled.gemm fprop %x, %w bias(%b) epilogue(gelu) residual(%r) at "l" : !scaled.tensor<33x200xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<50x200xf32, #fp8_128x128_power_of_two, #fp8_128x128_power_of_two>, tensor<50xf32>, tensor<33x50xf32> -> tensor<33x50xf32>, tensor<33x50xf32>
  // CHECK: %{{.*}} = scaled.gemm dgrad %arg2, %arg1 at "l" : !scaled.tensor<33x50xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<50x200xf32, #fp8_128x128_power_of_two, #fp8_128x128_power_of_two> -> tensor<33x200xbf16>
  %dx = scaled.gemm dgrad %dy, %w at "l" : !scaled.tensor<33x50xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<50x200xf32, #fp8_128x128_power_of_two, #fp8_128x128_power_of_two> -> tensor<33x200xbf16>
  // CHECK: %{{.*}} = scaled.gemm wgrad %arg2, %arg0 at "l" : !scaled.tensor<33x50xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<33x200xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two> -> tensor<50x200xf32>
  %dw = scaled.gemm wgrad %dy, %x at "l" : !scaled.tensor<33x50xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two>, !scaled.tensor<33x200xf32, #fp8_1x128_power_of_two, #fp8_1x128_power_of_two> -> tensor<50x200xf32>
  return
}

// CHECK-LABEL: func.func @gemm_mixed
func.func @gemm_mixed(%x: tensor<?x64xbf16>, %w: !scaled.tensor<16x64xbf16, #mxfp4_1x32, #mxfp4_1x32>, %q: !scaled.tensor<?x64xbf16, #fp8_row>, %dy: !torch.vtensor<[?,16],f16>, %v: !scaled.tensor<16x64xf16, #nvfp4_1x32, #nvfp4_1x32>) {
  // CHECK: %{{.*}} = scaled.gemm fprop %arg0, %arg1 : tensor<?x64xbf16>, !scaled.tensor<16x64xbf16, #mxfp4_1x32, #mxfp4_1x32> -> tensor<?x16xbf16>
  %0 = scaled.gemm fprop %x, %w : tensor<?x64xbf16>, !scaled.tensor<16x64xbf16, #mxfp4_1x32, #mxfp4_1x32> -> tensor<?x16xbf16>
  // CHECK: %{{.*}} = scaled.gemm fprop %arg2, %arg1 : !scaled.tensor<?x64xbf16, #fp8_row>, !scaled.tensor<16x64xbf16, #mxfp4_1x32, #mxfp4_1x32> -> tensor<?x16xbf16>
  %1 = scaled.gemm fprop %q, %w : !scaled.tensor<?x64xbf16, #fp8_row>, !scaled.tensor<16x64xbf16, #mxfp4_1x32, #mxfp4_1x32> -> tensor<?x16xbf16>
  // CHECK: %{{.*}} = scaled.gemm dgrad %arg3, %arg4 : !torch.vtensor<[?,16],f16>, !scaled.tensor<16x64xf16, #nvfp4_1x32, #nvfp4_1x32> -> !torch.vtensor<[?,64],f16>
  %2 = scaled.gemm dgrad %dy, %v : !torch.vtensor<[?,16],f16>, !scaled.tensor<16x64xf16, #nvfp4_1x32, #nvfp4_1x32> -> !torch.vtensor<[?,64],f16>
  return
}

// CHECK-LABEL: func.func @gemm_pairs
func.func @gemm_pairs(%a: !scaled.tensor<?x64xf32, #nvfp4_1x16_per_row>, %b: !scaled.tensor<16x64xf32, #nvfp4_16x16>, %dy: !scaled.tensor<?x16xf32, none, #nvfp4_1x16_stochastic_rht>, %x: !scaled.tensor<?x64xf32, none, #nvfp4_1x16_rht>, %c: !scaled.tensor<?x64xf32, #int8>) {
  // CHECK: %{{.*}} = scaled.gemm fprop %arg0, %arg1 : !scaled.tensor<?x64xf32, #nvfp4_1x16_per_row>, !scaled.tensor<16x64xf32, #nvfp4_16x16> -> tensor<?x16xf32>
  %0 = scaled.gemm fprop %a, %b : !scaled.tensor<?x64xf32, #nvfp4_1x16_per_row>, !scaled.tensor<16x64xf32, #nvfp4_16x16> -> tensor<?x16xf32>
  // CHECK: %{{.*}} = scaled.gemm wgrad %arg2, %arg3 : !scaled.tensor<?x16xf32, none, #nvfp4_1x16_stochastic_rht>, !scaled.tensor<?x64xf32, none, #nvfp4_1x16_rht> -> tensor<16x64xf32>
  %1 = scaled.gemm wgrad %dy, %x : !scaled.tensor<?x16xf32, none, #nvfp4_1x16_stochastic_rht>, !scaled.tensor<?x64xf32, none, #nvfp4_1x16_rht> -> tensor<16x64xf32>
  // CHECK: %{{.*}} = scaled.gemm fprop %arg4, %arg4 : !scaled.tensor<?x64xf32, #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>>, !scaled.tensor<?x64xf32, #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>> -> tensor<?x?xf32>
  %2 = scaled.gemm fprop %c, %c : !scaled.tensor<?x64xf32, #int8>, !scaled.tensor<?x64xf32, #int8> -> tensor<?x?xf32>
  return
}

// CHECK-LABEL: func.func @dequantize_and_transpose
func.func @dequantize_and_transpose(%x: !scaled.tensor<40x72xf16, #mxfp8_1x32, #mxfp8_32x1>, %w: !scaled.tensor<40x72xf16, #mxfp8_32x32>) {
  // CHECK: %{{.*}} = scaled.dequantize columnwise %arg0 : !scaled.tensor<40x72xf16, #mxfp8_1x32, #mxfp8_32x1> -> tensor<40x72xf32>
  %0 = scaled.dequantize columnwise %x : !scaled.tensor<40x72xf16, #mxfp8_1x32, #mxfp8_32x1> -> tensor<40x72xf32>
  // CHECK: %{{.*}} = scaled.transpose %arg1 : !scaled.tensor<40x72xf16, #mxfp8_32x32> -> !scaled.tensor<40x72xf16, none, #mxfp8_32x32>
  %1 = scaled.transpose %w : !scaled.tensor<40x72xf16, #mxfp8_32x32> -> !scaled.tensor<40x72xf16, none, #mxfp8_32x32>
  return
}

// CHECK-LABEL: func.func @layout
func.func @layout(%x: tensor<?x60xf32>, %size: index, %q: !scaled.tensor<30x60xf32, #mxfp8_1x32>) {
  // CHECK: %{{.*}} = scaled.pad %arg0 to multiples(16, 32) : tensor<?x60xf32> -> tensor<?x64xf32>
  %0 = scaled.pad %x to multiples(16, 32) : tensor<?x60xf32> -> tensor<?x64xf32>
  // CHECK: %{{.*}} = scaled.unpad %{{.*}} sizes(%arg1) : tensor<?x64xf32>, index -> tensor<?x60xf32>
  %1 = scaled.unpad %0 sizes(%size) : tensor<?x64xf32>, index -> tensor<?x60xf32>
  // CHECK: %{{.*}} = scaled.pad %arg2 to multiples(32, 32) : !scaled.tensor<30x60xf32, #mxfp8_1x32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  %2 = scaled.pad %q to multiples(32, 32) : !scaled.tensor<30x60xf32, #mxfp8_1x32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32>
  // CHECK: %{{.*}} = scaled.swizzle %{{.*}} : !scaled.tensor<32x64xf32, #mxfp8_1x32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32_gemm>
  %3 = scaled.swizzle %2 : !scaled.tensor<32x64xf32, #mxfp8_1x32> -> !scaled.tensor<32x64xf32, #mxfp8_1x32_gemm>
  return
}

// CHECK-LABEL: func.func @turned
func.func @turned(%x: !scaled.tensor<2x?x64xf32, none, #mxfp8_32x1>) {
  // CHECK: %{{.*}} = scaled.flatten %arg0 : !scaled.tensor<2x?x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1>
  %0 = scaled.flatten %x : !scaled.tensor<2x?x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1>
  // CHECK: %{{.*}} = scaled.turn %{{.*}} : !scaled.tensor<?x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1_turned>
  %1 = scaled.turn %0 : !scaled.tensor<?x64xf32, none, #mxfp8_32x1> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1_turned>
  // CHECK: %{{.*}} = scaled.swizzle %{{.*}} : !scaled.tensor<?x64xf32, none, #mxfp8_32x1_turned> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1_gemm>
  %2 = scaled.swizzle %1 : !scaled.tensor<?x64xf32, none, #mxfp8_32x1_turned> -> !scaled.tensor<?x64xf32, none, #mxfp8_32x1_gemm>
  return
}

// CHECK-LABEL: func.func @epilogue
func.func @epilogue(%x: tensor<?x64xf32>, %bias: tensor<64xbf16>, %residual: tensor<?x64xbf16>) {
  // CHECK: %{{.*}}:2 = scaled.epilogue gelu %arg0 bias(%arg1) residual(%arg2) : tensor<?x64xf32>, tensor<64xbf16>, tensor<?x64xbf16> -> tensor<?x64xbf16>, tensor<?x64xbf16>
  %0:2 = scaled.epilogue gelu %x bias(%bias) residual(%residual) : tensor<?x64xf32>, tensor<64xbf16>, tensor<?x64xbf16> -> tensor<?x64xbf16>, tensor<?x64xbf16>
  return
}

// CHECK-LABEL: func.func @stored
func.func @stored(%w: !torch.vtensor<[48,64],bf16>, %stack: tensor<4x48x64xf32>) {
  // CHECK: %{{.*}} = scaled.stored %arg0 : !torch.vtensor<[48,64],bf16> -> !scaled.tensor<48x64xbf16, #nvfp4_1x16_static>
  %0 = scaled.stored %w : !torch.vtensor<[48,64],bf16> -> !scaled.tensor<48x64xbf16, #nvfp4_1x16_static>
  // CHECK: %{{.*}} = scaled.stored %arg1 : tensor<4x48x64xf32> -> !scaled.tensor<4x48x64xf32 in 4, #fp8_128x128>
  %1 = scaled.stored %stack : tensor<4x48x64xf32> -> !scaled.tensor<4x48x64xf32 in 4, #fp8_128x128>
  return
}

// CHECK-LABEL: func.func @state
func.func @state(%x: tensor<4x?xbf16>, %scale: tensor<f32>, %history: tensor<1024xf32>, %rng: tensor<2xi64>, %count: tensor<i64>, %ends: tensor<8xi32>) {
  // CHECK: %{{.*}} = scaled.amax %arg0 per_row : tensor<4x?xbf16> -> tensor<4xf32>
  %rows = scaled.amax %x per_row : tensor<4x?xbf16> -> tensor<4xf32>
  // CHECK: %{{.*}} = scaled.amax %arg0 rht : tensor<4x?xbf16> -> tensor<f32>
  %amax = scaled.amax %x rht : tensor<4x?xbf16> -> tensor<f32>
  // CHECK: %{{.*}}:2 = scaled.update_scale %arg1, %arg2, %{{.*}} for #fp8_tensor_delayed algorithm(most_recent) margin(1) : tensor<f32>, tensor<1024xf32>, tensor<f32> -> tensor<f32>, tensor<1024xf32>
  %s:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed algorithm(most_recent) margin(1) : tensor<f32>, tensor<1024xf32>, tensor<f32> -> tensor<f32>, tensor<1024xf32>
  // CHECK: %{{.*}} = scaled.count_saturated %arg0, %arg1, %arg4 for #nvfp4_1x16_static : tensor<4x?xbf16>, tensor<f32>, tensor<i64> -> tensor<i64>
  %more = scaled.count_saturated %x, %scale, %count for #nvfp4_1x16_static : tensor<4x?xbf16>, tensor<f32>, tensor<i64> -> tensor<i64>
  // CHECK: %{{.*}} = scaled.count_saturated %arg0, %arg1, %arg4 ends(%arg5) for #nvfp4_1x16_static : tensor<4x?xbf16>, tensor<f32>, tensor<i64>, tensor<8xi32> -> tensor<i64>
  %others = scaled.count_saturated %x, %scale, %count ends(%ends) for #nvfp4_1x16_static : tensor<4x?xbf16>, tensor<f32>, tensor<i64>, tensor<8xi32> -> tensor<i64>
  // CHECK: %{{.*}} = scaled.advance_rng %arg3 : tensor<2xi64> -> tensor<2xi64>
  %next = scaled.advance_rng %rng : tensor<2xi64> -> tensor<2xi64>
  return
}

// CHECK-LABEL: func.func @state_of_experts
func.func @state_of_experts(%x: tensor<?x64xf32>, %ends: tensor<8xi32>, %scale: tensor<8xf32>, %history: tensor<16x8xf32>) {
  // CHECK: %{{.*}}:2 = scaled.quantize input %arg0 ends(%arg1) scale(%arg2) : tensor<?x64xf32>, tensor<8xf32>, tensor<8xi32> -> !scaled.tensor<?x64xf32 in 8, #fp8_tensor_delayed>, tensor<8xf32>
  %q, %amax = scaled.quantize input %x ends(%ends) scale(%scale) : tensor<?x64xf32>, tensor<8xf32>, tensor<8xi32> -> !scaled.tensor<?x64xf32 in 8, #fp8_tensor_delayed>, tensor<8xf32>
  // CHECK: %{{.*}}:2 = scaled.update_scale %arg2, %arg3, %{{.*}} for #fp8_tensor_delayed : tensor<8xf32>, tensor<16x8xf32>, tensor<8xf32> -> tensor<8xf32>, tensor<16x8xf32>
  %s:2 = scaled.update_scale %scale, %history, %amax for #fp8_tensor_delayed : tensor<8xf32>, tensor<16x8xf32>, tensor<8xf32> -> tensor<8xf32>, tensor<16x8xf32>
  return
}

// CHECK-LABEL: func.func @measures
func.func @measures(%q: !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, %x: tensor<8x64xf32>, %ends: tensor<4xi32>, %bias: tensor<64xf32>, %on: tensor<f32>) {
  // CHECK: %{{.*}} = scaled.measure_quantize rowwise %arg0 source(%arg1) ends(%arg2) : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, tensor<8x64xf32>, tensor<4xi32> -> tensor<545xf64>
  %m = scaled.measure_quantize rowwise %q source(%x) ends(%ends) : !scaled.tensor<8x64xf32 in 4, #mxfp8_1x32>, tensor<8x64xf32>, tensor<4xi32> -> tensor<545xf64>
  // CHECK: %{{.*}} = scaled.measure_product %arg1, %arg1 bias(%arg3) : tensor<8x64xf32>, tensor<8x64xf32>, tensor<64xf32> -> tensor<8xf64>
  %p = scaled.measure_product %x, %x bias(%bias) : tensor<8x64xf32>, tensor<8x64xf32>, tensor<64xf32> -> tensor<8xf64>
  // CHECK: %{{.*}} = scaled.measure_influence %arg1, %arg1, %arg1 : tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32> -> tensor<2xf64>
  %i = scaled.measure_influence %x, %x, %x : tensor<8x64xf32>, tensor<8x64xf32>, tensor<8x64xf32> -> tensor<2xf64>
  // CHECK: %{{.*}} = scaled.switch %arg4, %arg1, %arg1 : tensor<f32>, tensor<8x64xf32>, tensor<8x64xf32> -> tensor<8x64xf32>
  %s = scaled.switch %on, %x, %x : tensor<f32>, tensor<8x64xf32>, tensor<8x64xf32> -> tensor<8x64xf32>
  return
}

// CHECK-LABEL: module @calls
module @calls {
  module @block {
  }
  // CHECK: scaled.call_block @block at "blocks.0"
  scaled.call_block @block at "blocks.0"
  // CHECK: scaled.call_block @block at "blocks.1" {scaled.note = "the last"}
  scaled.call_block @block at "blocks.1" {scaled.note = "the last"}
  // CHECK: scaled.call_block @block
  // CHECK-NOT: at
  scaled.call_block @block
}
