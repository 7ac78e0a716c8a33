// RUN: steelyard-opt %s --allow-unregistered-dialect -p 'scaled-raise-gemms,cse' | FileCheck %s

// A kernel [K, N] is the second operand of a GEMM through its transpose; the layer is the parameter's module.
// CHECK-LABEL: func.func @dense
// CHECK: %[[X:.*]] = stablehlo.reshape %arg0 : (tensor<2x16x64xf32>) -> tensor<32x64xf32>
// CHECK: %[[W:.*]] = stablehlo.transpose %arg1, dims = [1, 0]
// CHECK: %[[Y:.*]] = scaled.matmul fprop %[[X]], %[[W]] at "mlp.up" : tensor<32x64xf32>, tensor<128x64xf32> -> tensor<32x128xf32>
// CHECK: stablehlo.reshape %[[Y]] : (tensor<32x128xf32>) -> tensor<2x16x128xf32>
func.func @dense(%x: tensor<2x16x64xf32>, %w: tensor<64x128xf32> {scaled.parameter = "mlp.up.kernel"}) -> tensor<2x16x128xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<2x16x64xf32>, tensor<64x128xf32>) -> tensor<2x16x128xf32>
  return %y : tensor<2x16x128xf32>
}

// The heads of a projection are one dim of its matrix, and nothing is moved for that.
// CHECK-LABEL: func.func @heads
// CHECK: %[[FLAT:.*]] = stablehlo.reshape %arg1 : (tensor<64x4x8xf32>) -> tensor<64x32xf32>
// CHECK: %[[W:.*]] = stablehlo.transpose %[[FLAT]], dims = [1, 0]
// CHECK: scaled.matmul fprop %arg0, %[[W]] at "query"
func.func @heads(%x: tensor<16x64xf32>, %w: tensor<64x4x8xf32> {scaled.parameter = "query.kernel"}) -> tensor<16x4x8xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x4x8xf32>) -> tensor<16x4x8xf32>
  return %y : tensor<16x4x8xf32>
}

// A parameter on the left is the second operand of the transposed product.
// CHECK-LABEL: func.func @left
// CHECK: %[[X:.*]] = stablehlo.transpose %arg1, dims = [1, 0]
// CHECK: %[[Y:.*]] = scaled.matmul fprop %[[X]], %arg0 at "left" : tensor<16x64xf32>, tensor<32x64xf32> -> tensor<16x32xf32>
// CHECK: stablehlo.transpose %[[Y]], dims = [1, 0]
func.func @left(%w: tensor<32x64xf32> {scaled.parameter = "left.w"}, %x: tensor<64x16xf32>) -> tensor<32x16xf32> {
  %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  return %y : tensor<32x16xf32>
}

// The frontend says which products are those of the backward: both read the gradient as a matrix of rows.
// CHECK-LABEL: func.func @backward
// CHECK: %[[W:.*]] = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<64x128xf32>) -> tensor<128x64xf32>
// CHECK: scaled.matmul dgrad %arg2, %[[W]] : tensor<16x128xf32>, tensor<128x64xf32> -> tensor<16x64xf32>
// CHECK: %[[DW:.*]] = scaled.matmul wgrad %arg2, %arg0 : tensor<16x128xf32>, tensor<16x64xf32> -> tensor<128x64xf32>
// CHECK: return %{{.*}}, %[[DW]]
func.func @backward(%x: tensor<16x64xf32>, %w: tensor<64x128xf32>, %dy: tensor<16x128xf32> {scaled.tangent}) -> (tensor<16x64xf32>, tensor<128x64xf32>) {
  %dx = stablehlo.dot_general %dy, %w, contracting_dims = [1] x [1] {scaled.kind = "dgrad"} : (tensor<16x128xf32>, tensor<64x128xf32>) -> tensor<16x64xf32>
  %dw = stablehlo.dot_general %dy, %x, contracting_dims = [0] x [0] {scaled.kind = "wgrad"} : (tensor<16x128xf32>, tensor<16x64xf32>) -> tensor<128x64xf32>
  return %dx, %dw : tensor<16x64xf32>, tensor<128x64xf32>
}

// What stays is said, with the reason.
// CHECK-LABEL: func.func @stays
// CHECK: stablehlo.dot_general {{.*}} {scaled.high_precision = "a batched product, such as those of attention"}
// CHECK: stablehlo.dot_general {{.*}} {scaled.high_precision = "no operand is a parameter"}
// CHECK: stablehlo.dot_general {{.*}} {scaled.high_precision = "operands of two dtypes, f32 and bf16"}
// CHECK: jax.conv_general_dilated{{.*}}scaled.high_precision = "convolutions stay in high precision"
func.func @stays(%q: tensor<4x16x8xf32>, %x: tensor<16x64xf32>, %y: tensor<64x16xf32>, %w: tensor<64x16xbf16> {scaled.parameter = "w"}) {
  %0 = stablehlo.dot_general %q, %q, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x16x8xf32>, tensor<4x16x8xf32>) -> tensor<4x16x16xf32>
  %1 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
  %2 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x64xf32>, tensor<64x16xbf16>) -> tensor<16x16xf32>
  %3 = "jax.conv_general_dilated"(%q, %q) : (tensor<4x16x8xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
  "test.use"(%0, %1, %2, %3) : (tensor<4x16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<4x16x8xf32>) -> ()
  return
}

// Experts: the sizes of their groups give their ends.
// CHECK-LABEL: func.func @experts
// CHECK: %[[ENDS:.*]] = "jax.group_ends"(%arg2) : (tensor<4xi32>) -> tensor<4xi32>
// CHECK: %[[W:.*]] = stablehlo.transpose %arg1, dims = [0, 2, 1]
// CHECK: scaled.grouped_matmul fprop %arg0, %[[W]] ends(%[[ENDS]]) at "experts.up"
// CHECK: scaled.grouped_matmul dgrad %arg3, %[[W]] ends(%[[ENDS]]) at "experts.up"
// CHECK: %[[DW:.*]] = scaled.grouped_matmul wgrad %arg3, %arg0 ends(%[[ENDS]]) at "experts.up"
// CHECK: stablehlo.transpose %[[DW]], dims = [0, 2, 1]
func.func @experts(%x: tensor<48x64xf32>, %w: tensor<4x64x32xf32> {scaled.parameter = "experts.up"}, %sizes: tensor<4xi32>, %dy: tensor<48x32xf32> {scaled.tangent}) -> (tensor<48x32xf32>, tensor<48x64xf32>, tensor<4x64x32xf32>) {
  %y = "jax.ragged_dot_general"(%x, %w, %sizes) {scaled.kind = "fprop"} : (tensor<48x64xf32>, tensor<4x64x32xf32>, tensor<4xi32>) -> tensor<48x32xf32> loc("experts.up")
  %dx = "jax.ragged_dot_general"(%dy, %w, %sizes) {scaled.kind = "dgrad"} : (tensor<48x32xf32>, tensor<4x64x32xf32>, tensor<4xi32>) -> tensor<48x64xf32> loc("experts.up")
  %dw = "jax.ragged_dot_general"(%x, %dy, %sizes) {scaled.kind = "wgrad", scaled.swapped} : (tensor<48x64xf32>, tensor<48x32xf32>, tensor<4xi32>) -> tensor<4x64x32xf32> loc("experts.up")
  return %y, %dx, %dw : tensor<48x32xf32>, tensor<48x64xf32>, tensor<4x64x32xf32>
}
