// RUN: steelyard-opt %s --split-input-file | FileCheck %s
// RUN: steelyard-opt %s --split-input-file -o %t.1 && steelyard-opt %t.1 --split-input-file | diff %t.1 -
// RUN: steelyard-opt %s --split-input-file --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC

// The short form and the generic one are read alike, and mix; each prints as the other.

// CHECK-LABEL: func.func @mixed(
// CHECK-SAME: %arg0: !scaled.tensor<8x64xf32, #mxfp8_1x32>, %arg1: !scaled.tensor<48x64xf32, #mxfp8_1x32>, %arg2: tensor<48xf32>
// GENERIC: "scaled.gemm"(%arg0, %arg1, %arg2) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x64xf32>, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>, none>, !scaled.tensor<tensor<48x64xf32>, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>, none>, tensor<48xf32>) -> tensor<8x48xf32>
func.func @mixed(%x: !scaled.tensor<8x64xf32, #mxfp8_1x32>, %w: !scaled.tensor<tensor<48x64xf32>, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>, none>, %b: tensor<48xf32>) {
  // CHECK: %0 = scaled.gemm fprop %arg0, %arg1 bias(%arg2) at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32>, tensor<48xf32> -> tensor<8x48xf32>
  %0 = scaled.gemm fprop %x, %w bias(%b) at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32>, tensor<48xf32> -> tensor<8x48xf32>
  // CHECK: %1 = scaled.gemm fprop %arg0, %arg1 bias(%arg2) at "up" : !scaled.tensor<8x64xf32, #mxfp8_1x32>, !scaled.tensor<48x64xf32, #mxfp8_1x32>, tensor<48xf32> -> tensor<8x48xf32>
  %1 = "scaled.gemm"(%x, %w, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up", operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<8x64xf32, #mxfp8_1x32, none>, !scaled.tensor<tensor<48x64xf32>, #mxfp8_1x32, none>, tensor<48xf32>) -> tensor<8x48xf32>
  return
}

// -----

// The number of groups stands behind the shape.
// CHECK-LABEL: func.func @groups(
// CHECK-SAME: %arg0: !scaled.tensor<?x64xf32 in 8, #mxfp8_1x32>, %arg1: !scaled.tensor<?x64xf32 in 8, #mxfp8_1x32>
// GENERIC: ^bb0(%arg0: !scaled.tensor<tensor<?x64xf32, 8 : i64>, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>, none>
func.func @groups(%x: !scaled.tensor<?x64xf32 in 8, #mxfp8_1x32>, %y: !scaled.tensor<tensor<?x64xf32, 8 : i64>, #mxfp8_1x32, none>) {
  return
}

// -----

// A file may have aliases of its own, also under a name that means something else elsewhere.
#mine = #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = 1.0 : f32}>
#mxfp8_1x32 = #fp8_e5m2_tensor
!quantized = !scaled.tensor<8x64xf32, #mine, #mxfp8_1x32>
// CHECK-LABEL: func.func @aliases(
// CHECK-SAME: !scaled.tensor<8x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = 1.000000e+00 : f32}>, #fp8_e5m2_tensor>
func.func @aliases(%x: !quantized) {
  // CHECK: scaled.dequantize columnwise %arg0 {note = #fp8_e5m2_tensor} :
  %0 = scaled.dequantize columnwise %x {note = #mxfp8_1x32} : !quantized -> tensor<8x64xf32>
  return
}

// -----

// Lines and blanks are free, comments stand anywhere, and values have any name.
// CHECK-LABEL: func.func @layout(
func.func @layout(%a-b.c$: tensor<8x64xf32>, %1: tensor<f32>) {
  // CHECK: %0:2 = scaled.quantize input %arg0 scale(%arg1) at "\22scaled.free\22 %x" {a = "scaled.gemm", scaled.path = "native", unit} : tensor<8x64xf32>, tensor<f32> -> !scaled.tensor<8x64xf32, #fp8_tensor_delayed, #fp8_tensor_delayed>, tensor<f32>
  %_:2 = scaled.quantize // the role
    input %a-b.c$ scale( %1 )at "\22scaled.free\22 %x" {
      unit, a = "scaled.gemm", // a comment }
      scaled.path = "native"
    } :tensor<8x64xf32>,tensor<f32>
    -> !scaled.tensor< 8x64xf32 , #fp8_tensor_delayed, // "both"
       #fp8_tensor_delayed>, tensor<f32> scaled.free %_#1 : tensor<f32> scaled.free %_#0 : !scaled.tensor<8x64xf32, #fp8_tensor_delayed, #fp8_tensor_delayed>
  // CHECK-NEXT: scaled.free %0#1 : tensor<f32>
  // CHECK-NEXT: scaled.free %0#0 :
  return
}

// -----

// Modules in modules, ops of other dialects, and attributes whose names are those of ops.
// CHECK: module @outer
module @outer attributes {scaled.gemm, scaled.pad = 1 : i64} {
  // CHECK-NEXT: module @inner
  module @inner {
    // CHECK: func.func private @declared(!scaled.tensor<?x2xbf16, none, #nvfp4_1x16_rht>) attributes {scaled.free}
    func.func private @declared(!scaled.tensor<?x2xbf16, none, #nvfp4_1x16_rht>) attributes {scaled.free}
    func.func @"scaled.free"(%scaled.pad: tensor<2x3xf32>, %flag: i1) -> tensor<2x3xf32> {
      // CHECK: scf.if
      %r = scf.if %flag -> (tensor<2x3xf32>) {
        // CHECK-NEXT: %[[P:.*]] = scaled.pad %arg0 to multiples(1, 1) : tensor<2x3xf32> -> tensor<2x3xf32>
        %p = scaled.pad %scaled.pad to multiples(1, 1) : tensor<2x3xf32> -> tensor<2x3xf32>
        scf.yield %p : tensor<2x3xf32>
      } else {
        scf.yield %scaled.pad : tensor<2x3xf32>
      }
      return %r : tensor<2x3xf32>
    }
  }
}
