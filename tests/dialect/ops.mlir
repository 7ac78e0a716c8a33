// RUN: steelyard-opt %s | steelyard-opt | FileCheck %s
// RUN: steelyard-opt %s --emit-bytecode | steelyard-opt | FileCheck %s
// RUN: steelyard-opt %s -o %t.1 && steelyard-opt %t.1 -o %t.2 && diff %t.1 %t.2
// RUN: steelyard-opt %s --mlir-print-local-scope | steelyard-opt -o %t.3 && diff %t.1 %t.3

// Every op, on builtin and torch tensors, with static and dynamic dims, through text and bytecode.

// Schemes are spelled once, under names that say what they are.
// CHECK-DAG: #fp8_tensor_delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
// CHECK-DAG: #fp8_e5m2_tensor = #scaled.scheme<f8E5M2, "tensor", f32, {}>
// CHECK-DAG: #fp8_1x128_power_of_two = #scaled.scheme<f8E4M3FN, "1x128", f32, {power_of_two}>
// CHECK-DAG: #mxfp8_1x32_floor = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "floor"}>
// CHECK-DAG: #nvfp4_1x16_stochastic_rht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, rounding = "stochastic", second_level = "tensor"}>
// CHECK-DAG: #nvfp4_1x16_row = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>
// CHECK-DAG: #int8_per_row_1x64 = #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>

#fp8 = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
#grad = #scaled.scheme<f8E5M2, "tensor", f32, {}>
#block = #scaled.scheme<f8E4M3FN, "1x128", f32, {power_of_two}>
#tile = #scaled.scheme<f8E4M3FN, "128x128", f32, {power_of_two}>
#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mx_floor = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "floor"}>
#mx_col = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
#mx_tile = #scaled.scheme<f8E4M3FN, "32x32", f8E8M0FNU, {}>
#mx_gemm = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {layout = "gemm"}>
#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#nv_row = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>
#nv_tile = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "tensor"}>
#nv_sr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
#nv_sr_rht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, rounding = "stochastic", second_level = "tensor"}>
#nv_rht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor"}>
#int8 = #scaled.scheme<i8, "1x64", f32, {custom = "int8_per_row"}>

// CHECK-LABEL: func.func @matmul
func.func @matmul(%x: tensor<2x?x64xbf16>, %w: tensor<48x64xbf16>, %dy: tensor<2x?x48xbf16>, %b: tensor<48xbf16>) {
  // CHECK: "scaled.matmul"({{.*}}) {{.*}}kind = "fprop", layer = "mlp.up"{{.*}} -> tensor<2x?x48xbf16>
  %y = "scaled.matmul"(%x, %w, %b) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x?x64xbf16>, tensor<48x64xbf16>, tensor<48xbf16>) -> tensor<2x?x48xbf16>
  // CHECK: "scaled.matmul"({{.*}}) {{.*}}kind = "dgrad"{{.*}} -> tensor<2x?x64xbf16>
  %dx = "scaled.matmul"(%dy, %w) {batch_dims = 0 : i64, kind = "dgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x?x48xbf16>, tensor<48x64xbf16>) -> tensor<2x?x64xbf16>
  // CHECK: "scaled.matmul"({{.*}}) {{.*}}kind = "wgrad"{{.*}} -> tensor<48x64xf32>
  %dw = "scaled.matmul"(%dy, %x) {batch_dims = 0 : i64, kind = "wgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x?x48xbf16>, tensor<2x?x64xbf16>) -> tensor<48x64xf32>
  return
}

// CHECK-LABEL: func.func @batched_and_single_row
func.func @batched_and_single_row(%q: !torch.vtensor<[2,12,?,64],f32>, %k: !torch.vtensor<[2,12,?,64],f32>, %x: !torch.vtensor<[64],f16>, %w: !torch.vtensor<[10,64],f16>) {
  // CHECK: "scaled.matmul"({{.*}}) {batch_dims = 2 : i64{{.*}} -> !torch.vtensor<[2,12,?,?],f32>
  %s = "scaled.matmul"(%q, %k) {batch_dims = 2 : i64, kind = "fprop", layer = "attention", operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[2,12,?,64],f32>, !torch.vtensor<[2,12,?,64],f32>) -> !torch.vtensor<[2,12,?,?],f32>
  // CHECK: "scaled.matmul"({{.*}}) {{.*}} -> !torch.vtensor<[10],f16>
  %y = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "head", operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[64],f16>, !torch.vtensor<[10,64],f16>) -> !torch.vtensor<[10],f16>
  return
}

// CHECK-LABEL: func.func @quantize
func.func @quantize(%x: !torch.vtensor<[?,64],f32>, %scale: !torch.vtensor<[],f32>, %amax: !torch.vtensor<[],f32>, %rng: !torch.vtensor<[2],si64>) {
  // CHECK: "scaled.quantize"(%arg0, %arg1) {{.*}} -> (!scaled.tensor<tensor<?x64xf32>, #fp8_tensor_delayed, #fp8_tensor_delayed>, !torch.vtensor<[],f32>)
  %0:2 = "scaled.quantize"(%x, %scale) {layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (!torch.vtensor<[?,64],f32>, !torch.vtensor<[],f32>) -> (!scaled.tensor<tensor<?x64xf32>, #delayed, #delayed>, !torch.vtensor<[],f32>)
  // CHECK: "scaled.quantize"(%arg0, %arg2) {{.*}} -> !scaled.tensor<tensor<?x64xf32>, #nvfp4_1x16, none>
  %1 = "scaled.quantize"(%x, %amax) {layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "weight"} : (!torch.vtensor<[?,64],f32>, !torch.vtensor<[],f32>) -> !scaled.tensor<tensor<?x64xf32>, #nv, none>
  // A gradient: both copies rounded stochastically, the columnwise one transformed.
  // CHECK: "scaled.quantize"(%arg0, %arg3) {{.*}} -> !scaled.tensor<tensor<?x64xf32>, #nvfp4_1x16_stochastic, #nvfp4_1x16_stochastic_rht>
  %2 = "scaled.quantize"(%x, %rng) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, role = "grad_output"} : (!torch.vtensor<[?,64],f32>, !torch.vtensor<[2],si64>) -> !scaled.tensor<tensor<?x64xf32>, #nv_sr, #nv_sr_rht>
  // A hybrid: one format rowwise, another columnwise.
  // CHECK: !scaled.tensor<tensor<?x64xf32>, #mxfp8_1x32_floor, #fp8_e5m2_tensor>
  %3 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[?,64],f32>) -> !scaled.tensor<tensor<?x64xf32>, #mx_floor, #grad>
  // CHECK: (!scaled.tensor<tensor<?x64xf32>, #nvfp4_1x16_row, none>, !torch.vtensor<[?],f32>)
  %4:2 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, role = "input"} : (!torch.vtensor<[?,64],f32>) -> (!scaled.tensor<tensor<?x64xf32>, #nv_row, none>, !torch.vtensor<[?],f32>)
  // CHECK: !scaled.tensor<tensor<?x64xf32>, #int8_per_row_1x64, none>
  %5 = "scaled.quantize"(%x) {layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, role = "input"} : (!torch.vtensor<[?,64],f32>) -> !scaled.tensor<tensor<?x64xf32>, #int8, none>
  return
}

// CHECK-LABEL: func.func @produce_quantize
func.func @produce_quantize(%x: !torch.vtensor<[?,64],bf16>, %w: !torch.vtensor<[64],f32>, %b: !torch.vtensor<[64],f32>, %scale: !torch.vtensor<[],f32>) {
  // CHECK: "scaled.produce_quantize"(%arg0, %arg1, %arg2) {{.*}}producer = "layer_norm"{{.*}} -> !scaled.tensor<tensor<?x64xbf16>, #mxfp8_1x32, #mxfp8_32x1>
  %0 = "scaled.produce_quantize"(%x, %w, %b) {epsilon = 1.0e-05 : f64, layer = "", operandSegmentSizes = array<i32: 1, 0, 1, 1, 0>, producer = "layer_norm", role = "input"} : (!torch.vtensor<[?,64],bf16>, !torch.vtensor<[64],f32>, !torch.vtensor<[64],f32>) -> !scaled.tensor<tensor<?x64xbf16>, #mx, #mx_col>
  // CHECK: "scaled.produce_quantize"(%arg0, %arg0, %arg3) {{.*}}producer = "silu_and_multiply"{{.*}} -> !scaled.tensor<tensor<?x64xbf16>, #fp8_tensor_delayed, none>
  %1 = "scaled.produce_quantize"(%x, %x, %scale) {epsilon = 0.0 : f64, layer = "mlp.down", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, producer = "silu_and_multiply", role = "input"} : (!torch.vtensor<[?,64],bf16>, !torch.vtensor<[?,64],bf16>, !torch.vtensor<[],f32>) -> !scaled.tensor<tensor<?x64xbf16>, #delayed, none>
  return
}

// CHECK-LABEL: func.func @gemm
func.func @gemm(%x: !scaled.tensor<tensor<33x200xf32>, #block, #block>, %w: !scaled.tensor<tensor<50x200xf32>, #tile, #tile>, %dy: !scaled.tensor<tensor<33x50xf32>, #block, #block>, %b: tensor<50xf32>, %r: tensor<33x50xf32>, %dw: tensor<50x200xf32>) {
  // CHECK: "scaled.gemm"(%arg0, %arg1, %arg3, %arg4) {{.*}}epilogue = "gelu", kind = "fprop"{{.*}} -> (tensor<33x50xf32>, tensor<33x50xf32>)
  %y:2 = "scaled.gemm"(%x, %w, %b, %r) {batch_dims = 0 : i64, epilogue = "gelu", kind = "fprop", layer = "l", operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!scaled.tensor<tensor<33x200xf32>, #block, #block>, !scaled.tensor<tensor<50x200xf32>, #tile, #tile>, tensor<50xf32>, tensor<33x50xf32>) -> (tensor<33x50xf32>, tensor<33x50xf32>)
  // CHECK: "scaled.gemm"(%arg2, %arg1) {{.*}}kind = "dgrad"{{.*}} -> tensor<33x200xbf16>
  %dx = "scaled.gemm"(%dy, %w) {batch_dims = 0 : i64, epilogue = "none", kind = "dgrad", layer = "l", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<33x50xf32>, #block, #block>, !scaled.tensor<tensor<50x200xf32>, #tile, #tile>) -> tensor<33x200xbf16>
  // CHECK: "scaled.gemm"(%arg2, %arg0, %arg5) {{.*}}kind = "wgrad"{{.*}} -> tensor<50x200xf32>
  %new = "scaled.gemm"(%dy, %x, %dw) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "l", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<33x50xf32>, #block, #block>, !scaled.tensor<tensor<33x200xf32>, #block, #block>, tensor<50x200xf32>) -> tensor<50x200xf32>
  return
}

// CHECK-LABEL: func.func @gemm_pairs
func.func @gemm_pairs(%a: !scaled.tensor<tensor<?x64xf32>, #nv_row, none>, %b: !scaled.tensor<tensor<16x64xf32>, #nv_tile, none>, %dy: !scaled.tensor<tensor<?x16xf32>, none, #nv_sr_rht>, %x: !scaled.tensor<tensor<?x64xf32>, none, #nv_rht>, %c: !scaled.tensor<tensor<?x64xf32>, #int8, none>) {
  // CHECK: "scaled.gemm"(%arg0, %arg1)
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<?x64xf32>, #nv_row, none>, !scaled.tensor<tensor<16x64xf32>, #nv_tile, none>) -> tensor<?x16xf32>
  // CHECK: "scaled.gemm"(%arg2, %arg3)
  %1 = "scaled.gemm"(%dy, %x) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<?x16xf32>, none, #nv_sr_rht>, !scaled.tensor<tensor<?x64xf32>, none, #nv_rht>) -> tensor<16x64xf32>
  // CHECK: "scaled.gemm"(%arg4, %arg4)
  %2 = "scaled.gemm"(%c, %c) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<?x64xf32>, #int8, none>, !scaled.tensor<tensor<?x64xf32>, #int8, none>) -> tensor<?x?xf32>
  return
}

// CHECK-LABEL: func.func @dequantize_and_transpose
func.func @dequantize_and_transpose(%x: !scaled.tensor<tensor<40x72xf16>, #mx, #mx_col>, %w: !scaled.tensor<tensor<40x72xf16>, #mx_tile, none>) {
  // CHECK: "scaled.dequantize"(%arg0) {usage = "columnwise"}
  %0 = "scaled.dequantize"(%x) {usage = "columnwise"} : (!scaled.tensor<tensor<40x72xf16>, #mx, #mx_col>) -> tensor<40x72xf32>
  // CHECK: "scaled.transpose"(%arg1) {{.*}} -> !scaled.tensor<tensor<40x72xf16>, none, #mxfp8_32x32>
  %1 = "scaled.transpose"(%w) : (!scaled.tensor<tensor<40x72xf16>, #mx_tile, none>) -> !scaled.tensor<tensor<40x72xf16>, none, #mx_tile>
  return
}

// CHECK-LABEL: func.func @layout
func.func @layout(%x: tensor<?x60xf32>, %size: index, %q: !scaled.tensor<tensor<30x60xf32>, #mx, none>) {
  // CHECK: "scaled.pad"(%arg0) {multiples = array<i64: 16, 32>} : (tensor<?x60xf32>) -> tensor<?x64xf32>
  %0 = "scaled.pad"(%x) {multiples = array<i64: 16, 32>} : (tensor<?x60xf32>) -> tensor<?x64xf32>
  // CHECK: "scaled.unpad"({{.*}}, %arg1)
  %1 = "scaled.unpad"(%0, %size) {operandSegmentSizes = array<i32: 1, 1>} : (tensor<?x64xf32>, index) -> tensor<?x60xf32>
  // CHECK: "scaled.pad"(%arg2) {{.*}} -> !scaled.tensor<tensor<32x64xf32>, #mxfp8_1x32, none>
  %2 = "scaled.pad"(%q) {multiples = array<i64: 32, 32>} : (!scaled.tensor<tensor<30x60xf32>, #mx, none>) -> !scaled.tensor<tensor<32x64xf32>, #mx, none>
  // CHECK: "scaled.swizzle"({{.*}}) {{.*}} -> !scaled.tensor<tensor<32x64xf32>, #mxfp8_1x32_gemm, none>
  %3 = "scaled.swizzle"(%2) : (!scaled.tensor<tensor<32x64xf32>, #mx, none>) -> !scaled.tensor<tensor<32x64xf32>, #mx_gemm, none>
  return
}

#mx_turned = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {layout = "turned"}>
#mx_col_gemm = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {layout = "gemm"}>
// CHECK-LABEL: func.func @turned
func.func @turned(%x: !scaled.tensor<tensor<2x?x64xf32>, none, #mx_col>) {
  // CHECK: "scaled.flatten"(%arg0) {{.*}} -> !scaled.tensor<tensor<?x64xf32>, none, #mxfp8_32x1>
  %0 = "scaled.flatten"(%x) : (!scaled.tensor<tensor<2x?x64xf32>, none, #mx_col>) -> !scaled.tensor<tensor<?x64xf32>, none, #mx_col>
  // CHECK: "scaled.turn"({{.*}}) {{.*}} -> !scaled.tensor<tensor<?x64xf32>, none, #mxfp8_32x1_turned>
  %1 = "scaled.turn"(%0) : (!scaled.tensor<tensor<?x64xf32>, none, #mx_col>) -> !scaled.tensor<tensor<?x64xf32>, none, #mx_turned>
  // CHECK: "scaled.swizzle"({{.*}}) {{.*}} -> !scaled.tensor<tensor<?x64xf32>, none, #mxfp8_32x1_gemm>
  %2 = "scaled.swizzle"(%1) : (!scaled.tensor<tensor<?x64xf32>, none, #mx_turned>) -> !scaled.tensor<tensor<?x64xf32>, none, #mx_col_gemm>
  return
}

// CHECK-LABEL: func.func @epilogue
func.func @epilogue(%x: tensor<?x64xf32>, %bias: tensor<64xbf16>, %residual: tensor<?x64xbf16>) {
  // CHECK: %0:2 = "scaled.epilogue"(%arg0, %arg1, %arg2) {epilogue = "gelu", operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 1>}
  %0:2 = "scaled.epilogue"(%x, %bias, %residual) {epilogue = "gelu", operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 1>} : (tensor<?x64xf32>, tensor<64xbf16>, tensor<?x64xbf16>) -> (tensor<?x64xbf16>, tensor<?x64xbf16>)
  return
}

// CHECK-LABEL: func.func @state
func.func @state(%x: tensor<4x?xbf16>, %scale: tensor<f32>, %history: tensor<1024xf32>, %rng: tensor<2xi64>) {
  // CHECK: "scaled.amax"(%arg0) {per_row = true, rht = false} : (tensor<4x?xbf16>) -> tensor<4xf32>
  %rows = "scaled.amax"(%x) {per_row = true, rht = false} : (tensor<4x?xbf16>) -> tensor<4xf32>
  // CHECK: "scaled.amax"(%arg0) {per_row = false, rht = true} : (tensor<4x?xbf16>) -> tensor<f32>
  %amax = "scaled.amax"(%x) {per_row = false, rht = true} : (tensor<4x?xbf16>) -> tensor<f32>
  // CHECK: "scaled.compute_scale"({{.*}}) {scheme = #fp8_tensor}
  %new = "scaled.compute_scale"(%amax) {scheme = #fp8} : (tensor<f32>) -> tensor<f32>
  // CHECK: "scaled.update_scale"({{.*}}) {algorithm = "most_recent", margin = 1 : i64, scheme = #fp8_tensor_delayed}
  %s:2 = "scaled.update_scale"(%scale, %history, %amax) {algorithm = "most_recent", margin = 1 : i64, scheme = #delayed} : (tensor<f32>, tensor<1024xf32>, tensor<f32>) -> (tensor<f32>, tensor<1024xf32>)
  // CHECK: "scaled.advance_rng"(%arg3)
  %next = "scaled.advance_rng"(%rng) : (tensor<2xi64>) -> tensor<2xi64>
  return
}
