// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp8 without-parameters attention},scaled-insert-quantize' | FileCheck %s --check-prefix=MX
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-block without-parameters},scaled-insert-quantize,cse' | FileCheck %s --check-prefix=BLOCK
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-current without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=CURRENT
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=mxfp4/none without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=WEIGHTS

// The three GEMMs of one linear layer: each reads the copies that its kind needs, in the format of their role.

// MX-LABEL: func.func @linear
// MX: %[[X:.*]] = scaled.quantize input %arg0 {{.*}} -> !scaled.tensor<?x64xbf16, #mxfp8_1x32>
// MX: %[[W:.*]] = scaled.quantize weight %arg1 {{.*}} -> !scaled.tensor<48x64xbf16, #mxfp8_1x32>
// MX: scaled.gemm fprop %[[X]], %[[W]] bias(%arg3) at "mlp.up" {{.*}} -> tensor<?x48xbf16>
// MX: %[[DY:.*]] = scaled.quantize grad_output %arg2 {{.*}} -> !scaled.tensor<?x48xbf16, #mxfp8_1x32>
// MX: %[[WC:.*]] = scaled.quantize weight %arg1 {{.*}} -> !scaled.tensor<48x64xbf16, none, #mxfp8_32x1>
// MX: scaled.gemm dgrad %[[DY]], %[[WC]] {{.*}} -> tensor<?x64xbf16>
// MX: %[[DYC:.*]] = scaled.quantize {{\w+}} %arg2 {{.*}} -> !scaled.tensor<?x48xbf16, none, #mxfp8_32x1>
// MX: %[[XC:.*]] = scaled.quantize {{\w+}} %arg0 {{.*}} -> !scaled.tensor<?x64xbf16, none, #mxfp8_32x1>
// MX: scaled.gemm wgrad %[[DYC]], %[[XC]] {{.*}} -> tensor<48x64xf32>
// MX-NOT: scaled.matmul

// Activations and gradients that are not quantized are multiplied by quantized weights as they are.
// WEIGHTS-LABEL: func.func @linear
// WEIGHTS: %[[W:.*]] = scaled.quantize weight %arg1 {{.*}} -> !scaled.tensor<48x64xbf16, #mxfp4_1x32>
// WEIGHTS: scaled.gemm fprop %arg0, %[[W]] bias(%arg3)
// WEIGHTS: %[[WC:.*]] = scaled.quantize weight %arg1 {{.*}} -> !scaled.tensor<48x64xbf16, none, #mxfp4_1x32>
// WEIGHTS: scaled.gemm dgrad %arg2, %[[WC]]
// WEIGHTS: scaled.matmul wgrad %arg2, %arg0 {{.*}}scaled.high_precision = "the recipe leaves the grad_output of wgrad in high precision"

// BLOCK-LABEL: func.func @linear
// BLOCK: !scaled.tensor<?x64xbf16, #fp8_1x128_power_of_two>
// BLOCK: !scaled.tensor<48x64xbf16, #fp8_128x128_power_of_two>
// BLOCK: !scaled.tensor<48x64xbf16, none, #fp8_128x128_power_of_two>

// CURRENT-LABEL: func.func @linear
// CURRENT: scaled.quantize grad_output {{.*}} -> !scaled.tensor<?x48xbf16, #fp8_e5m2_tensor>
func.func @linear(%x: tensor<?x64xbf16>, %w: tensor<48x64xbf16>, %dy: tensor<?x48xbf16>, %b: tensor<48xbf16>) -> (tensor<?x48xbf16>, tensor<?x64xbf16>, tensor<48x64xf32>) {
  %y = scaled.matmul fprop %x, %w bias(%b) at "mlp.up" : tensor<?x64xbf16>, tensor<48x64xbf16>, tensor<48xbf16> -> tensor<?x48xbf16>
  %dx = scaled.matmul dgrad %dy, %w at "mlp.up" : tensor<?x48xbf16>, tensor<48x64xbf16> -> tensor<?x64xbf16>
  %dw = scaled.matmul wgrad %dy, %x at "mlp.up" : tensor<?x48xbf16>, tensor<?x64xbf16> -> tensor<48x64xf32>
  return %y, %dx, %dw : tensor<?x48xbf16>, tensor<?x64xbf16>, tensor<48x64xf32>
}

// A delayed scale is state: one argument for each layer and role, however often it is read.
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=fp8-delayed without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=DELAYED
// DELAYED-LABEL: func.func @linear
// DELAYED-SAME: %arg4: tensor<f32> {scaled.state = "mlp.up.input.scale"}, %arg5: tensor<f32> {scaled.state = "mlp.up.weight.scale"}, %arg6: tensor<f32> {scaled.state = "mlp.up.grad_output.scale"})
// DELAYED: scaled.quantize {{\w+}} %arg0 scale(%arg4) at "mlp.up"
// DELAYED: scaled.quantize {{\w+}} %arg1 scale(%arg5)
// DELAYED: scaled.quantize {{\w+}} %arg2 scale(%arg6)
// DELAYED: scaled.quantize {{\w+}} %arg1 scale(%arg5)

// In a function with gradients, random bits are state that is updated at the end, as delayed scales are.
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4 without-parameters},scaled-insert-quantize' | FileCheck %s --check-prefix=RANDOM
// RANDOM-LABEL: func.func @training
// RANDOM-SAME: %arg2: tensor<8x48xf32> {scaled.tangent}, %arg3: tensor<2xi64> {scaled.state = "rng"})
// RANDOM-SAME: -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}, tensor<2xi64> {scaled.state = "rng"})
// RANDOM: scaled.quantize grad_output %arg2 rng(%arg3)
// RANDOM: %[[NEXT:.*]] = scaled.advance_rng %arg3
// RANDOM: return %{{.*}}, %{{.*}}, %[[NEXT]]
// DELAYED-LABEL: func.func @training
// DELAYED-SAME: {scaled.state = "mlp.up.input.amax_history"}
// DELAYED-SAME: -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}, tensor<f32> {scaled.state = "mlp.up.input.scale"}, tensor<1024xf32> {scaled.state = "mlp.up.input.amax_history"}
// DELAYED: %[[X:.*]]:2 = scaled.quantize {{\w+}} %arg0 scale(%[[SCALE:[a-z0-9]+]])
// DELAYED: scaled.update_scale %[[SCALE]], %{{.*}}, %[[X]]#1 for #fp8_tensor_delayed {scaled.reduce
func.func @training(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32> {scaled.tangent}) -> (tensor<8x48xf32>, tensor<8x64xf32> {scaled.gradient = "input 0"}) {
  %y = scaled.matmul fprop %x, %w at "mlp.up" : tensor<8x64xf32>, tensor<48x64xf32> -> tensor<8x48xf32>
  %dx = scaled.matmul dgrad %dy, %w at "mlp.up" : tensor<8x48xf32>, tensor<48x64xf32> -> tensor<8x64xf32>
  return %y, %dx : tensor<8x48xf32>, tensor<8x64xf32>
}

// In a batched product of the backward the gradient is a gradient, on whichever side, and the rest are inputs.
// RUN: steelyard-opt %s -p 'scaled-apply-recipe{recipe=nvfp4 attention},scaled-insert-quantize' | FileCheck %s --check-prefix=BATCHED
// BATCHED-LABEL: func.func @attention
// BATCHED: %[[P:.*]] = scaled.quantize input %arg0 :
// BATCHED: %[[DY:.*]] = scaled.quantize grad_output %arg1 rng(
// BATCHED: scaled.gemm fprop %[[P]], %[[DY]] batch_dims(1)
func.func @attention(%p: tensor<6x21x17xf32>, %dy: tensor<6x40x17xf32> {scaled.tangent}) -> (tensor<6x21x40xf32> {scaled.gradient = "input 0"}) {
  %0 = scaled.matmul fprop %p, %dy batch_dims(1) : tensor<6x21x17xf32>, tensor<6x40x17xf32> -> tensor<6x21x40xf32>
  return %0 : tensor<6x21x40xf32>
}

// A static scale is state that nothing updates; what it saturates is counted once per product of the forward, in
// evaluation, too.
// RUN: steelyard-opt %s -p 'scaled-insert-quantize' | FileCheck %s --check-prefix=STATIC
// STATIC-LABEL: func.func @static
// STATIC-SAME: %arg3: tensor<f32> {scaled.state = "mlp.up.input.scale"}, %arg4: tensor<i64> {scaled.state = "mlp.up.input.saturated"})
// STATIC-SAME: -> (tensor<8x48xf32>, tensor<48x64xf32>, tensor<i64> {scaled.state = "mlp.up.input.saturated"})
// STATIC: %[[COUNT:.*]] = scaled.count_saturated %arg0, %arg3, %arg4 for #fp8_tensor_static
// STATIC: scaled.quantize input %arg0 scale(%arg3) at "mlp.up" {{.*}} -> !scaled.tensor<8x64xf32, #fp8_tensor_static>
// STATIC: scaled.quantize input %arg0 scale(%arg3) at "mlp.up" {{.*}} -> !scaled.tensor<8x64xf32, none, #fp8_tensor_static>
// STATIC-NOT: scaled.count_saturated
// STATIC: return %{{.*}}, %{{.*}}, %[[COUNT]]
func.func @static(%x: tensor<8x64xf32>, %w: tensor<48x64xf32>, %dy: tensor<8x48xf32>) -> (tensor<8x48xf32>, tensor<48x64xf32>) {
  %y = scaled.matmul fprop %x, %w at "mlp.up" {lhs_scheme = #fp8_tensor_static, rhs_scheme = #fp8_tensor} : tensor<8x64xf32>, tensor<48x64xf32> -> tensor<8x48xf32>
  %dw = scaled.matmul wgrad %dy, %x at "mlp.up" {lhs_scheme = #fp8_tensor, rhs_scheme = #fp8_tensor_static} : tensor<8x48xf32>, tensor<8x64xf32> -> tensor<48x64xf32>
  return %y, %dw : tensor<8x48xf32>, tensor<48x64xf32>
}

// Experts: rows are quantized in groups, and each weight of the stack by itself. Each has a delayed scale of its own.
// DELAYED-LABEL: func.func @experts
// DELAYED-SAME: tensor<4xf32> {scaled.state = "experts.up.input.scale"}, %{{.*}}: tensor<4xf32> {scaled.state = "experts.up.weight.scale"}
// DELAYED-LABEL: func.func @trained_experts
// DELAYED-SAME: tensor<1024x4xf32> {scaled.state = "experts.up.input.amax_history"}
// DELAYED: %[[X:.*]]:2 = scaled.quantize input %arg0 ends(%arg2) scale(%[[SCALE:[a-z0-9]+]]) at "experts.up" {{.*}}, tensor<4xf32>
// DELAYED: scaled.update_scale %[[SCALE]], %{{.*}}, %[[X]]#1 for #fp8_tensor_delayed {{.*}} -> tensor<4xf32>, tensor<1024x4xf32>
// MX-LABEL: func.func @experts
// MX: %[[X:.*]] = scaled.quantize input %arg0 ends(%arg2) {{.*}} -> !scaled.tensor<?x64xbf16 in 4, #mxfp8_1x32>
// MX: %[[W:.*]] = scaled.quantize weight %arg1 : {{.*}} -> !scaled.tensor<4x48x64xbf16 in 4, #mxfp8_1x32>
// MX: scaled.grouped_gemm fprop %[[X]], %[[W]] ends(%arg2) at "experts.up"
// MX: %[[DY:.*]] = scaled.quantize grad_output %arg3 ends(%arg2) {{.*}} -> !scaled.tensor<?x48xbf16 in 4, none, #mxfp8_32x1>
// MX: %[[XC:.*]] = scaled.quantize input %arg0 ends(%arg2) {{.*}} -> !scaled.tensor<?x64xbf16 in 4, none, #mxfp8_32x1>
// MX: scaled.grouped_gemm wgrad %[[DY]], %[[XC]] ends(%arg2) at "experts.up" {{.*}} -> tensor<4x48x64xbf16>
func.func @experts(%x: tensor<?x64xbf16>, %w: tensor<4x48x64xbf16>, %ends: tensor<4xi32>, %dy: tensor<?x48xbf16>) -> (tensor<?x48xbf16>, tensor<4x48x64xbf16>) {
  %y = scaled.grouped_matmul fprop %x, %w ends(%ends) at "experts.up" : tensor<?x64xbf16>, tensor<4x48x64xbf16>, tensor<4xi32> -> tensor<?x48xbf16>
  %dw = scaled.grouped_matmul wgrad %dy, %x ends(%ends) at "experts.up" : tensor<?x48xbf16>, tensor<?x64xbf16>, tensor<4xi32> -> tensor<4x48x64xbf16>
  return %y, %dw : tensor<?x48xbf16>, tensor<4x48x64xbf16>
}

func.func @trained_experts(%x: tensor<?x64xbf16>, %w: tensor<4x48x64xbf16>, %ends: tensor<4xi32>, %dy: tensor<?x48xbf16> {scaled.tangent}) -> (tensor<?x48xbf16>, tensor<?x64xbf16> {scaled.gradient = "input 0"}) {
  %y = scaled.grouped_matmul fprop %x, %w ends(%ends) at "experts.up" : tensor<?x64xbf16>, tensor<4x48x64xbf16>, tensor<4xi32> -> tensor<?x48xbf16>
  %dx = scaled.grouped_matmul dgrad %dy, %w ends(%ends) at "experts.up" : tensor<?x48xbf16>, tensor<4x48x64xbf16>, tensor<4xi32> -> tensor<?x64xbf16>
  return %y, %dx : tensor<?x48xbf16>, tensor<?x64xbf16>
}

// Rows behind the last group saturate nothing.
// STATIC-LABEL: func.func @static_experts
// STATIC: scaled.count_saturated %arg0, %arg3, %arg4 ends(%arg2) for #fp8_tensor_static
func.func @static_experts(%x: tensor<?x64xf32>, %w: tensor<4x48x64xf32>, %ends: tensor<4xi32>) -> tensor<?x48xf32> {
  %y = scaled.grouped_matmul fprop %x, %w ends(%ends) at "experts.up" {lhs_scheme = #fp8_tensor_static, rhs_scheme = #fp8_tensor} : tensor<?x64xf32>, tensor<4x48x64xf32>, tensor<4xi32> -> tensor<?x48xf32>
  return %y : tensor<?x48xf32>
}
