// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=MX
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-block without-parameters},scaled-insert-quantize,cse' | FileCheck %s --check-prefix=BLOCK
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-current without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=CURRENT

// The three GEMMs of one linear layer: each reads the copies that its kind needs, in the format of their role.

// MX-LABEL: func.func @linear
// MX: %[[X:.*]] = "scaled.quantize"(%arg0) {{.*}}role = "input"{{.*}} -> !scaled.tensor<tensor<?x64xbf16>, #mxfp8_1x32, none>
// MX: %[[W:.*]] = "scaled.quantize"(%arg1) {{.*}}role = "weight"{{.*}} -> !scaled.tensor<tensor<48x64xbf16>, #mxfp8_1x32, none>
// MX: "scaled.gemm"(%[[X]], %[[W]], %arg3) {{.*}}kind = "fprop", layer = "mlp.up"{{.*}} -> tensor<?x48xbf16>
// MX: %[[DY:.*]] = "scaled.quantize"(%arg2) {{.*}}role = "grad_output"{{.*}} -> !scaled.tensor<tensor<?x48xbf16>, #mxfp8_1x32, none>
// MX: %[[WC:.*]] = "scaled.quantize"(%arg1) {{.*}}role = "weight"{{.*}} -> !scaled.tensor<tensor<48x64xbf16>, none, #mxfp8_32x1>
// MX: "scaled.gemm"(%[[DY]], %[[WC]]) {{.*}}kind = "dgrad"{{.*}} -> tensor<?x64xbf16>
// MX: %[[DYC:.*]] = "scaled.quantize"(%arg2) {{.*}} -> !scaled.tensor<tensor<?x48xbf16>, none, #mxfp8_32x1>
// MX: %[[XC:.*]] = "scaled.quantize"(%arg0) {{.*}} -> !scaled.tensor<tensor<?x64xbf16>, none, #mxfp8_32x1>
// MX: "scaled.gemm"(%[[DYC]], %[[XC]]) {{.*}}kind = "wgrad"{{.*}} -> tensor<48x64xf32>
// MX-NOT: scaled.matmul

// BLOCK-LABEL: func.func @linear
// BLOCK: !scaled.tensor<tensor<?x64xbf16>, #fp8_1x128_power_of_two, none>
// BLOCK: !scaled.tensor<tensor<48x64xbf16>, #fp8_128x128_power_of_two, none>
// BLOCK: !scaled.tensor<tensor<48x64xbf16>, none, #fp8_128x128_power_of_two>

// CURRENT-LABEL: func.func @linear
// CURRENT: role = "grad_output"{{.*}} -> !scaled.tensor<tensor<?x48xbf16>, #fp8_e5m2_tensor, none>
func.func @linear(%x: tensor<?x64xbf16>, %w: tensor<48x64xbf16>, %dy: tensor<?x48xbf16>, %b: tensor<48xbf16>) -> (tensor<?x48xbf16>, tensor<?x64xbf16>, tensor<48x64xf32>) {
  %y = "scaled.matmul"(%x, %w, %b) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<?x64xbf16>, tensor<48x64xbf16>, tensor<48xbf16>) -> tensor<?x48xbf16>
  %dx = "scaled.matmul"(%dy, %w) {batch_dims = 0 : i64, kind = "dgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x48xbf16>, tensor<48x64xbf16>) -> tensor<?x64xbf16>
  %dw = "scaled.matmul"(%dy, %x) {batch_dims = 0 : i64, kind = "wgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<?x48xbf16>, tensor<?x64xbf16>) -> tensor<48x64xf32>
  return %y, %dx, %dw : tensor<?x48xbf16>, tensor<?x64xbf16>, tensor<48x64xf32>
}

// A delayed scale is state: one argument for each layer and role, however often it is read.
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-delayed without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=DELAYED
// DELAYED-LABEL: func.func @linear
// DELAYED-SAME: %arg4: tensor<f32> {scaled.state = "mlp.up.input.scale"}, %arg5: tensor<f32> {scaled.state = "mlp.up.weight.scale"}, %arg6: tensor<f32> {scaled.state = "mlp.up.grad_output.scale"})
// DELAYED: "scaled.quantize"(%arg0, %arg4) {layer = "mlp.up"
// DELAYED: "scaled.quantize"(%arg1, %arg5)
// DELAYED: "scaled.quantize"(%arg2, %arg6)
// DELAYED: "scaled.quantize"(%arg1, %arg5)

// In a function with gradients, random bits are state that moves on at the end, as delayed scales do.
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4 without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=RANDOM
// RANDOM-LABEL: func.func @training
// RANDOM-SAME: %arg2: tensor<8x48xf32> {scaled.tangent}, %arg3: tensor<2xi64> {scaled.state = "rng"})
// RANDOM-SAME: -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}, tensor<2xi64> {scaled.state = "rng"})
// RANDOM: "scaled.quantize"(%arg2, %arg3) {{.*}}role = "grad_output"
// RANDOM: %[[NEXT:.*]] = "scaled.advance_rng"(%arg3)
// RANDOM: return %{{.*}}, %{{.*}}, %[[NEXT]]
// DELAYED-LABEL: func.func @training
// DELAYED-SAME: {scaled.state = "mlp.up.input.amax_history"}
// DELAYED-SAME: -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}, tensor<f32> {scaled.state = "mlp.up.input.scale"}, tensor<1024xf32> {scaled.state = "mlp.up.input.amax_history"}
// DELAYED: %[[X:.*]]:2 = "scaled.quantize"(%arg0, %[[SCALE:[a-z0-9]+]])
// DELAYED: "scaled.update_scale"(%[[SCALE]], %{{.*}}, %[[X]]#1) {algorithm = "max", margin = 0 : i64, scaled.reduce
func.func @training(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32> {scaled.tangent}) -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}) {
  %y = "scaled.matmul"(%x, %w) {batch_dims = 0 : i64, kind = "fprop", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x64xf32>, tensor<48x64xf32>) -> tensor<8x48xf32>
  %dx = "scaled.matmul"(%dy, %w) {batch_dims = 0 : i64, kind = "dgrad", layer = "mlp.up", operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<8x48xf32>, tensor<48x64xf32>) -> tensor<8x64xf32>
  return %y, %dx : tensor<8x48xf32>, tensor<8x64xf32>
}
