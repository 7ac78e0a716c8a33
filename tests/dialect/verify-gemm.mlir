// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.gemm.

// gemm_c1
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{kind must be one of fprop, dgrad, wgrad, got none [gemm_c1] (layer 'mlp')}}
  %0 = scaled.gemm none %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: tensor<64x64xi32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{lhs must be a !scaled.tensor or a tensor of f32, bf16, f16, got tensor<64x64xi32> [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : tensor<64x64xi32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: tensor<64x64xf32>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{lhs of wgrad must be a !scaled.tensor, got tensor<64x64xf32> [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : tensor<64x64xf32>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: tensor<64x64xf32>) {
  // expected-error @+1 {{rhs must be a !scaled.tensor, got tensor<64x64xf32> [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{fprop reads the rowwise copy of rhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{dgrad reads the columnwise copy of rhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm dgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c2
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{wgrad reads the columnwise copy of lhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

#mine = #scaled.scheme<i8, "1x64", f32, {custom = "mine"}>
// gemm_c3
func.func @f(%a: tensor<64x64xf32>, %b: !scaled.tensor<64x64xf32, #mine>) {
  // expected-error @+1 {{custom copies must be of one quantizer on both sides, got a plain tensor and custom 'mine' [gemm_c3] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : tensor<64x64xf32>, !scaled.tensor<64x64xf32, #mine> -> tensor<64x64xf32>
  return
}

// -----

#mine = #scaled.scheme<i8, "1x64", f32, {custom = "mine"}>
#yours = #scaled.scheme<i8, "1x64", f32, {custom = "yours"}>
// gemm_c3
func.func @f(%a: !scaled.tensor<64x64xf32, #mine>, %b: !scaled.tensor<64x64xf32, #yours>) {
  // expected-error @+1 {{custom copies must be of one quantizer on both sides, got custom 'mine' and custom 'yours' [gemm_c3] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mine>, !scaled.tensor<64x64xf32, #yours> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c4
func.func @f(%a: !scaled.tensor<64x64xf32, #fp8_128x128_power_of_two>, %b: !scaled.tensor<64x64xf32, #fp8_128x128_power_of_two>) {
  // expected-error @+1 {{at most one copy may be in 128x128 tiles, got both; quantize one in 1x128 blocks [gemm_c4] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #fp8_128x128_power_of_two>, !scaled.tensor<64x64xf32, #fp8_128x128_power_of_two> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c5
func.func @f(%a: !scaled.tensor<64x64xf32, none, #nvfp4_1x16_rht>, %b: !scaled.tensor<64x64xf32, none, #nvfp4_1x16>) {
  // expected-error @+1 {{the random Hadamard transform must be on both copies or on none, got one [gemm_c5] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, none, #nvfp4_1x16_rht>, !scaled.tensor<64x64xf32, none, #nvfp4_1x16> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c6
func.func @f(%a: !scaled.tensor<64x64xf32, #nvfp4_1x16>, %b: !scaled.tensor<64x64xf32, #nvfp4_1x16_per_row>) {
  // expected-error @+1 {{a second level per row must be on lhs, got it on rhs [gemm_c6] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #nvfp4_1x16>, !scaled.tensor<64x64xf32, #nvfp4_1x16_per_row> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c7
func.func @f(%a: !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>, %b: !scaled.tensor<64x64xf32, #nvfp4_16x16>) {
  // expected-error @+1 {{lhs of fprop is no gradient and must be rounded to nearest, got stochastic [gemm_c7] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<64x64xf32, #nvfp4_16x16> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c7
func.func @f(%a: !scaled.tensor<64x64xf32, none, #nvfp4_1x16_stochastic>, %b: !scaled.tensor<64x64xf32, none, #nvfp4_1x16_stochastic>) {
  // expected-error @+1 {{rhs of wgrad is no gradient and must be rounded to nearest, got stochastic [gemm_c7] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, none, #nvfp4_1x16_stochastic>, !scaled.tensor<64x64xf32, none, #nvfp4_1x16_stochastic> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c7: with batch dims either side may be a gradient, but not both.
func.func @f(%a: !scaled.tensor<2x64x64xf32, #nvfp4_1x16>, %b: !scaled.tensor<2x64x64xf32, #nvfp4_1x16_stochastic>) {
  %0 = scaled.gemm fprop %a, %b batch_dims(1) : !scaled.tensor<2x64x64xf32, #nvfp4_1x16>, !scaled.tensor<2x64x64xf32, #nvfp4_1x16_stochastic> -> tensor<2x64x64xf32>
  %1 = scaled.gemm fprop %b, %a batch_dims(1) : !scaled.tensor<2x64x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<2x64x64xf32, #nvfp4_1x16> -> tensor<2x64x64xf32>
  // expected-error @+1 {{lhs of fprop is no gradient and must be rounded to nearest, got stochastic [gemm_c7] (layer 'attn')}}
  %2 = scaled.gemm fprop %b, %b batch_dims(1) at "attn" : !scaled.tensor<2x64x64xf32, #nvfp4_1x16_stochastic>, !scaled.tensor<2x64x64xf32, #nvfp4_1x16_stochastic> -> tensor<2x64x64xf32>
  return
}

// -----

// gemm_c8
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<2x64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{rhs of fprop must have 2 dims, got [2,64,64] [gemm_c8] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<2x64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c9
func.func @f(%a: !scaled.tensor<2x64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<3x64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{batch dims of lhs and rhs must agree, got [2] and [3] [gemm_c9] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b batch_dims(1) at "mlp" : !scaled.tensor<2x64x64xf32, #mxfp8_1x32>, !scaled.tensor<3x64x64xf32, #mxfp8_1x32> -> tensor<2x64x64xf32>
  return
}

// -----

// gemm_c10
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x32xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{the dims that fprop reduces over must agree, got [64] and [32] [gemm_c10] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x32xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c11
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{result must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [gemm_c11] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xi8>
  return
}

// -----

// gemm_c11
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{the result must have shape [64,64], got [64,65] [gemm_c11] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x65xf32>
  return
}

// -----

// gemm_c12
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %c: tensor<64x64xf32>) {
  // expected-error @+1 {{bias must have shape [64], got tensor<64x64xf32> [gemm_c12] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b bias(%c) at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32>, tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c12
func.func @f(%a: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>, %c: tensor<64xf32>) {
  // expected-error @+1 {{only fprop takes a bias, got kind wgrad [gemm_c12] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b bias(%c) at "mlp" : !scaled.tensor<64x64xf32, none, #mxfp8_32x1>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1>, tensor<64xf32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c13
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{epilogue must be one of none, relu, gelu, gelu_tanh, silu, got tanh [gemm_c13] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b epilogue(tanh) at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c14
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %d: tensor<64x64xbf16>) {
  // expected-error @+1 {{residual must be tensor<64x64xf32>, got tensor<64x64xbf16> [gemm_c14] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b residual(%d) at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32>, tensor<64x64xbf16> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c15
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{a preactivation needs an epilogue other than none [gemm_c15] (layer 'mlp')}}
  %0:2 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>, tensor<64x64xf32>
  return
}

// -----

// gemm_c15
func.func @f(%a: !scaled.tensor<64x64xf32, #mxfp8_1x32>, %b: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{preactivation must be tensor<64x64xf32>, got tensor<64x32xf32> [gemm_c15] (layer 'mlp')}}
  %0:2 = scaled.gemm fprop %a, %b epilogue(gelu) at "mlp" : !scaled.tensor<64x64xf32, #mxfp8_1x32>, !scaled.tensor<64x64xf32, #mxfp8_1x32> -> tensor<64x64xf32>, tensor<64x32xf32>
  return
}

// -----

// gemm_c16
func.func @f(%a: !scaled.tensor<64x64xf32, #nvfp4_1x16_packed>, %b: !scaled.tensor<64x64xf32, #nvfp4_1x16>) {
  // expected-error @+1 {{a packed copy must be on rhs, got it on lhs [gemm_c16] (layer 'mlp')}}
  %0 = scaled.gemm fprop %a, %b at "mlp" : !scaled.tensor<64x64xf32, #nvfp4_1x16_packed>, !scaled.tensor<64x64xf32, #nvfp4_1x16> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c17
func.func @f(%a: !scaled.tensor<64x64xf32, none, #mxfp8_32x1_gemm>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1>) {
  // expected-error @+1 {{both copies or none must be in the gemm layout, and none turned, got gemm and compact [gemm_c17] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, none, #mxfp8_32x1_gemm>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1> -> tensor<64x64xf32>
  return
}

// -----

// gemm_c17
func.func @f(%a: !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned>, %b: !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned>) {
  // expected-error @+1 {{both copies or none must be in the gemm layout, and none turned, got turned and turned [gemm_c17] (layer 'mlp')}}
  %0 = scaled.gemm wgrad %a, %b at "mlp" : !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned>, !scaled.tensor<64x64xf32, none, #mxfp8_32x1_turned> -> tensor<64x64xf32>
  return
}
