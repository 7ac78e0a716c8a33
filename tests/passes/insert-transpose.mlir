// RUN: steelyard-opt %s -p scaled-insert-transpose | FileCheck %s

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
#row = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#col = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>

// One scale a tensor: the weight's columns are its rowwise codes, turned.
// CHECK-LABEL: func.func @from_codes
// CHECK: %[[W:.*]] = "scaled.quantize"(%arg1) {{.*}} -> !scaled.tensor<tensor<48x64xf32>, #[[S:.*]], none>
// CHECK: %[[T:.*]] = "scaled.transpose"(%[[W]]) {{.*}} -> !scaled.tensor<tensor<48x64xf32>, none, #[[S]]>
// CHECK: "scaled.gemm"(%{{.*}}, %[[W]]) {{.*}}kind = "fprop"
// CHECK: "scaled.gemm"(%{{.*}}, %[[T]]) {{.*}}kind = "dgrad"
func.func @from_codes(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32>) -> (tensor<8x48xf32>, tensor<8x64xf32>) {
  %0 = "scaled.quantize"(%x) {role = "input", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (tensor<8x64xf32>) -> !scaled.tensor<tensor<8x64xf32>, #tensor, none>
  %1 = "scaled.quantize"(%w) {role = "weight", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (tensor<48x64xf32>) -> !scaled.tensor<tensor<48x64xf32>, #tensor, #tensor>
  %2 = "scaled.quantize"(%dy) {role = "grad_output", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (tensor<8x48xf32>) -> !scaled.tensor<tensor<8x48xf32>, #tensor, none>
  %3 = "scaled.gemm"(%0, %1) {kind = "fprop", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x64xf32>, #tensor, none>, !scaled.tensor<tensor<48x64xf32>, #tensor, #tensor>) -> tensor<8x48xf32>
  %4 = "scaled.gemm"(%2, %1) {kind = "dgrad", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x48xf32>, #tensor, none>, !scaled.tensor<tensor<48x64xf32>, #tensor, #tensor>) -> tensor<8x64xf32>
  return %3, %4 : tensor<8x48xf32>, tensor<8x64xf32>
}

// Blocks along rows and along columns: both copies come from the source.
// CHECK-LABEL: func.func @from_the_source
// CHECK: "scaled.quantize"(%arg0) {{.*}} -> !scaled.tensor<tensor<48x64xf32>, #mxfp8_1x32, #mxfp8_32x1>
// CHECK-NOT: scaled.transpose
func.func @from_the_source(%w: tensor<48x64xf32>, %dy: !scaled.tensor<tensor<8x48xf32>, #row, none>) -> tensor<8x64xf32> {
  %0 = "scaled.quantize"(%w) {role = "weight", layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (tensor<48x64xf32>) -> !scaled.tensor<tensor<48x64xf32>, #row, #col>
  %1 = "scaled.gemm"(%dy, %0) {kind = "dgrad", batch_dims = 0 : i64, epilogue = "none", layer = "up", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<8x48xf32>, #row, none>, !scaled.tensor<tensor<48x64xf32>, #row, #col>) -> tensor<8x64xf32>
  return %1 : tensor<8x64xf32>
}
