// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of #scaled.scheme; each op that has a scheme checks them.

// scheme_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x16", f32, {}>>) {
  // expected-error @+1 {{got f8E4M3FN in 1x16 with f32 [scheme_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x16", f32, {}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E8M0FNU, {}>>) {
  // expected-error @+1 {{got f4E2M1FN in 1x16 with f8E8M0FNU [scheme_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E8M0FNU, {}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x33", f8E8M0FNU, {}>>) {
  // expected-error @+1 {{got f8E4M3FN in 1x33 with f8E8M0FNU [scheme_c1]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x33", f8E8M0FNU, {}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {rounding = "up"}>>) {
  // expected-error @+1 {{rounding must be one of nearest, stochastic, got 'up' [scheme_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {rounding = "up"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "later"}>>) {
  // expected-error @+1 {{source must be one of current, delayed, static, divisor, got 'later' [scheme_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "later"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = 3}>>) {
  // expected-error @+1 {{rule must be a string, got 3 : i64 [scheme_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = 3}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {power_of_two = false}>>) {
  // expected-error @+1 {{power_of_two must be a flag, got 'false' [scheme_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {power_of_two = false}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = 0.1}>>) {
  // expected-error @+1 {{epsilon must be an f32, got 1.000000e-01 : f64 [scheme_c2]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = 0.1}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {source = "delayed"}>>) {
  // expected-error @+1 {{a delayed scale must be one for the whole tensor, got block 1x128 [scheme_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {source = "delayed"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {power_of_two}>>) {
  // expected-error @+1 {{power_of_two needs f32 scales, got f8E8M0FNU [scheme_c4]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {power_of_two}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {epsilon = 1.0 : f32}>>) {
  // expected-error @+1 {{epsilon needs f32 scales, got f8E8M0FNU [scheme_c4]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {epsilon = 1.0 : f32}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c4
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = -1.0 : f32}>>) {
  // expected-error @+1 {{epsilon must be finite and not negative, got -1.0 [scheme_c4]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = -1.0 : f32}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c5
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {rounding = "stochastic"}>>) {
  // expected-error @+1 {{stochastic rounding needs f4E2M1FN in 1x16 or 16x16 blocks, got f8E4M3FN in tensor [scheme_c5]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {rounding = "stochastic"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c6
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {rht, second_level = "tensor"}>>) {
  // expected-error @+1 {{needs f4E2M1FN in 1x16 blocks, got f4E2M1FN in 16x16 [scheme_c6]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {rht, second_level = "tensor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c7
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {rule = "floor"}>>) {
  // expected-error @+1 {{scale rule floor needs f8E8M0FNU scales, got f32 [scheme_c7]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {rule = "floor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c8
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {}>>) {
  // expected-error @+1 {{got 'none' for f4E2M1FN with f8E4M3FN [scheme_c8]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c8
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E5M2, "tensor", f32, {second_level = "tensor"}>>) {
  // expected-error @+1 {{got 'tensor' for f8E5M2 with f32 [scheme_c8]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E5M2, "tensor", f32, {second_level = "tensor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c8
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x32", f8E8M0FNU, {second_level = "tensor"}>>) {
  // expected-error @+1 {{got 'tensor' for f4E2M1FN with f8E8M0FNU [scheme_c8]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x32", f8E8M0FNU, {second_level = "tensor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c9
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "row"}>>) {
  // expected-error @+1 {{a second level per row needs 1x16 blocks without the random Hadamard transform and stochastic rounding [scheme_c9]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "row"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c10
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {four_over_six = "mse"}>>) {
  // expected-error @+1 {{four-over-six needs f4E2M1FN in 1x16 or 16x16 blocks, without the random Hadamard transform and stochastic rounding, got f8E4M3FN in tensor [scheme_c10]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {four_over_six = "mse"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c11
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {layout = "gemm"}>>) {
  // expected-error @+1 {{the gemm layout needs block scales, got block tensor [scheme_c11]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {layout = "gemm"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c11
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {layout = "packed"}>>) {
  // expected-error @+1 {{the packed layout needs f4E2M1FN, got f8E4M3FN [scheme_c11]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {layout = "packed"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c12
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {colour = "red"}>>) {
  // expected-error @+1 {{unknown scheme option 'colour', the options are ['custom', 'epsilon', 'four_over_six', 'layout', 'power_of_two', 'rht', 'rounding', 'rule', 'second_level', 'source'] [scheme_c12]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {colour = "red"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c12
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "rceil"}>>) {
  // expected-error @+1 {{scheme options must not spell a default, got ['rule'] [scheme_c12]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "rceil"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c11
func.func @f(%x: !scaled.tensor<64x64xf32, none, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {layout = "turned", second_level = "tensor"}>>) {
  // expected-error @+1 {{the turned layout needs FP8 with f8E8M0FNU scales, got f4E2M1FN with f8E4M3FN [scheme_c11]}}
  %0 = scaled.dequantize columnwise %x : !scaled.tensor<64x64xf32, none, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {layout = "turned", second_level = "tensor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {source = "static"}>>) {
  // expected-error @+1 {{a static scale must be one for the whole tensor, got block 1x128 [scheme_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "1x128", f32, {source = "static"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row", source = "static"}>>) {
  // expected-error @+1 {{a static scale must be one for the whole tensor, got block 1x16 [scheme_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row", source = "static"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c13
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {power_of_two, source = "static"}>>) {
  // expected-error @+1 {{a static scale excludes power_of_two, epsilon, four_over_six, rht, rounding, got power_of_two [scheme_c13]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {power_of_two, source = "static"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c13
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {four_over_six = "mse", second_level = "tensor", source = "static"}>>) {
  // expected-error @+1 {{a static scale excludes power_of_two, epsilon, four_over_six, rht, rounding, got four_over_six [scheme_c13]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {four_over_six = "mse", second_level = "tensor", source = "static"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "divisor"}>>) {
  // expected-error @+1 {{a divisor must be a second level per tensor, got f8E4M3FN with f32 [scheme_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "divisor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c3
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row", source = "divisor"}>>) {
  // expected-error @+1 {{a divisor scale must be one for the whole tensor, got block 1x16 [scheme_c3]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "row", source = "divisor"}>> -> tensor<64x64xf32>
  return
}

// -----

// scheme_c13
func.func @f(%x: !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor", source = "divisor"}>>) {
  // expected-error @+1 {{a divisor scale excludes power_of_two, epsilon, four_over_six, rht, rounding, got rht [scheme_c13]}}
  %0 = scaled.dequantize rowwise %x : !scaled.tensor<64x64xf32, #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {rht, second_level = "tensor", source = "divisor"}>> -> tensor<64x64xf32>
  return
}
