// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.gemm.

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c1
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{kind must be one of fprop, dgrad, wgrad, got none [gemm_c1] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "none", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c2
func.func @f(%a: tensor<64x64xf32>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{lhs must be a !scaled.tensor, got tensor<64x64xf32> [gemm_c2] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (tensor<64x64xf32>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// gemm_c2
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, none, #mxc>) {
  // expected-error @+1 {{fprop reads the rowwise copy of rhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, none, #mxc>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c2
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{dgrad reads the columnwise copy of rhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "dgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// gemm_c2
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, none, #mxc>) {
  // expected-error @+1 {{wgrad reads the columnwise copy of lhs, which has none [gemm_c2] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, none, #mxc>) -> tensor<64x64xf32>
  return
}

// -----

#tensor = #scaled.scheme<f8E4M3FN, "tensor", f32, {}>
#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c3
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #tensor, none>) {
  // expected-error @+1 {{both copies must be of one family, got mx and tensor [gemm_c3] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #tensor, none>) -> tensor<64x64xf32>
  return
}

// -----

#mine = #scaled.scheme<i8, "1x64", f32, {custom = "mine"}>
#yours = #scaled.scheme<i8, "1x64", f32, {custom = "yours"}>
// gemm_c3
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mine, none>, %b: !scaled.tensor<tensor<64x64xf32>, #yours, none>) {
  // expected-error @+1 {{both copies must be of one family, got custom 'mine' and custom 'yours' [gemm_c3] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mine, none>, !scaled.tensor<tensor<64x64xf32>, #yours, none>) -> tensor<64x64xf32>
  return
}

// -----

#t128 = #scaled.scheme<f8E4M3FN, "128x128", f32, {power_of_two}>
// gemm_c4
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #t128, none>, %b: !scaled.tensor<tensor<64x64xf32>, #t128, none>) {
  // expected-error @+1 {{at most one copy may be in 128x128 tiles, got both; quantize one in 1x128 blocks [gemm_c4] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #t128, none>, !scaled.tensor<tensor<64x64xf32>, #t128, none>) -> tensor<64x64xf32>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#nvrht = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor"}>
// gemm_c5
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, none, #nvrht>, %b: !scaled.tensor<tensor<64x64xf32>, none, #nv>) {
  // expected-error @+1 {{the random Hadamard transform must be on both copies or on none, got one [gemm_c5] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, none, #nvrht>, !scaled.tensor<tensor<64x64xf32>, none, #nv>) -> tensor<64x64xf32>
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#nvrow = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row"}>
// gemm_c6
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #nv, none>, %b: !scaled.tensor<tensor<64x64xf32>, #nvrow, none>) {
  // expected-error @+1 {{a second level per row must be on lhs, got it on rhs [gemm_c6] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #nv, none>, !scaled.tensor<tensor<64x64xf32>, #nvrow, none>) -> tensor<64x64xf32>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
#nvt = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "tensor"}>
// gemm_c7
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #nvsr, none>, %b: !scaled.tensor<tensor<64x64xf32>, #nvt, none>) {
  // expected-error @+1 {{lhs of fprop is no gradient and must be rounded to nearest, got stochastic [gemm_c7] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #nvsr, none>, !scaled.tensor<tensor<64x64xf32>, #nvt, none>) -> tensor<64x64xf32>
  return
}

// -----

#nvsr = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rounding = "stochastic", second_level = "tensor"}>
// gemm_c7
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, none, #nvsr>, %b: !scaled.tensor<tensor<64x64xf32>, none, #nvsr>) {
  // expected-error @+1 {{rhs of wgrad is no gradient and must be rounded to nearest, got stochastic [gemm_c7] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, none, #nvsr>, !scaled.tensor<tensor<64x64xf32>, none, #nvsr>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c8
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<2x64x64xf32>, #mx, none>) {
  // expected-error @+1 {{rhs of fprop must have 2 dims, got [2,64,64] [gemm_c8] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<2x64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c9
func.func @f(%a: !scaled.tensor<tensor<2x64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<3x64x64xf32>, #mx, none>) {
  // expected-error @+1 {{batch dims of lhs and rhs must agree, got [2] and [3] [gemm_c9] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 1 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<2x64x64xf32>, #mx, none>, !scaled.tensor<tensor<3x64x64xf32>, #mx, none>) -> tensor<2x64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c10
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x32xf32>, #mx, none>) {
  // expected-error @+1 {{the dims that fprop reduces over must agree, got [64] and [32] [gemm_c10] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x32xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c11
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{result must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [gemm_c11] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xi8>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c11
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{the result must have shape [64,64], got [64,65] [gemm_c11] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x65xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c12
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %c: tensor<64x64xf32>) {
  // expected-error @+1 {{bias must have shape [64], got tensor<64x64xf32> [gemm_c12] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b, %c) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
// gemm_c12
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, none, #mxc>, %b: !scaled.tensor<tensor<64x64xf32>, none, #mxc>, %c: tensor<64xf32>) {
  // expected-error @+1 {{only fprop takes a bias, got kind wgrad [gemm_c12] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b, %c) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, none, #mxc>, !scaled.tensor<tensor<64x64xf32>, none, #mxc>, tensor<64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c13
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{epilogue must be one of none, relu, gelu, gelu_tanh, silu, got tanh [gemm_c13] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "tanh", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c14
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %d: tensor<64x64xbf16>) {
  // expected-error @+1 {{residual must be tensor<64x64xf32>, got tensor<64x64xbf16> [gemm_c14] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b, %d) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>, tensor<64x64xbf16>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c14
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %e: tensor<64xf32>) {
  // expected-error @+1 {{accumulator must be tensor<64x64xf32>, got tensor<64xf32> [gemm_c14] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b, %e) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>, tensor<64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c15
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %e: tensor<64x64xf32>) {
  // expected-error @+1 {{an accumulating gemm must have no bias, residual or epilogue [gemm_c15] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b, %e) {batch_dims = 0 : i64, epilogue = "relu", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c16
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{a preactivation needs an epilogue other than none [gemm_c16] (layer 'mlp')}}
  %0:2 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> (tensor<64x64xf32>, tensor<64x64xf32>)
  return
}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// gemm_c16
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #mx, none>, %b: !scaled.tensor<tensor<64x64xf32>, #mx, none>) {
  // expected-error @+1 {{preactivation must be tensor<64x64xf32>, got tensor<64x32xf32> [gemm_c16] (layer 'mlp')}}
  %0:2 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "gelu", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!scaled.tensor<tensor<64x64xf32>, #mx, none>, !scaled.tensor<tensor<64x64xf32>, #mx, none>) -> (tensor<64x64xf32>, tensor<64x32xf32>)
  return
}

// -----

#nv = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
#packed = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {layout = "packed", second_level = "tensor"}>
// gemm_c17
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, #packed, none>, %b: !scaled.tensor<tensor<64x64xf32>, #nv, none>) {
  // expected-error @+1 {{a packed copy must be on rhs, got it on lhs [gemm_c17] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, #packed, none>, !scaled.tensor<tensor<64x64xf32>, #nv, none>) -> tensor<64x64xf32>
  return
}

// -----

#mxc = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
#mxg = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {layout = "gemm"}>
// gemm_c18
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, none, #mxg>, %b: !scaled.tensor<tensor<64x64xf32>, none, #mxc>) {
  // expected-error @+1 {{both copies or none must be in the gemm layout, and none turned, got gemm and compact [gemm_c18] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, none, #mxg>, !scaled.tensor<tensor<64x64xf32>, none, #mxc>) -> tensor<64x64xf32>
  return
}

// -----

#mxt = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {layout = "turned"}>
// gemm_c18
func.func @f(%a: !scaled.tensor<tensor<64x64xf32>, none, #mxt>, %b: !scaled.tensor<tensor<64x64xf32>, none, #mxt>) {
  // expected-error @+1 {{both copies or none must be in the gemm layout, and none turned, got turned and turned [gemm_c18] (layer 'mlp')}}
  %0 = "scaled.gemm"(%a, %b) {batch_dims = 0 : i64, epilogue = "none", kind = "wgrad", layer = "mlp", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!scaled.tensor<tensor<64x64xf32>, none, #mxt>, !scaled.tensor<tensor<64x64xf32>, none, #mxt>) -> tensor<64x64xf32>
  return
}
