// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.quantize.

// quantize_c1
func.func @f(%x: tensor<64x64xf64>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xf64> [quantize_c1]}}
  %0 = scaled.quantize input %x : tensor<64x64xf64> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// quantize_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be a !scaled.tensor, got tensor<64x64xf32> [quantize_c2]}}
  %0 = scaled.quantize input %x : tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// quantize_c2
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{result must stand for [64,64] of f32, got [64,32] of f32 [quantize_c2]}}
  %0 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x32xf32, #mxfp8_1x32>
  return
}

// -----

// quantize_c2
func.func @f(%x: tensor<64x64xbf16>) {
  // expected-error @+1 {{result must stand for [64,64] of bf16, got [64,64] of f32 [quantize_c2]}}
  %0 = scaled.quantize input %x : tensor<64x64xbf16> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// quantize_c3
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{role must be one of input, weight, grad_output, got output [quantize_c3]}}
  %0 = scaled.quantize output %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{a delayed scheme needs the operand scale, got none [quantize_c4]}}
  %0 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor_delayed>
  return
}

// -----

// quantize_c4
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{a static scheme needs the operand scale, got none [quantize_c4]}}
  %0 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_static>
  return
}

// -----

// quantize_c4
func.func @f(%x: tensor<64x64xf32>, %s: tensor<f32>) {
  // expected-error @+1 {{the operand scale needs schemes with one scale per tensor, got block scales [quantize_c4]}}
  %0 = scaled.quantize input %x scale(%s) : tensor<64x64xf32>, tensor<f32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// quantize_c5
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{rng must be there for stochastic rounding and only then, got none [quantize_c5]}}
  %0 = scaled.quantize grad_output %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>
  return
}

// -----

// quantize_c5
func.func @f(%x: tensor<64x64xf32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{rng must be there for stochastic rounding and only then, got one [quantize_c5]}}
  %0 = scaled.quantize grad_output %x rng(%r) : tensor<64x64xf32>, tensor<2xi64> -> !scaled.tensor<64x64xf32, #nvfp4_1x16>
  return
}

// -----

// quantize_c6
func.func @f(%x: tensor<64x64xf32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{stochastic rounding needs role grad_output, got weight [quantize_c6]}}
  %0 = scaled.quantize weight %x rng(%r) : tensor<64x64xf32>, tensor<2xi64> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>
  return
}

// -----

// quantize_c7
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{new_amax needs schemes with one amax per tensor or per row, got block scales alone [quantize_c7]}}
  %0:2 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>, tensor<f32>
  return
}

// -----

// quantize_c7: the amaxes of groups are a part of copies with one scale per tensor only
func.func @f(%x: tensor<64x64xf32>, %e: tensor<4xi32>) {
  // expected-error @+1 {{new_amax needs schemes with one scale per tensor, got block scales alone [quantize_c7]}}
  %0:2 = scaled.quantize input %x ends(%e) : tensor<64x64xf32>, tensor<4xi32> -> !scaled.tensor<64x64xf32 in 4, #nvfp4_1x16>, tensor<4xf32>
  return
}

// -----

// quantize_c8: a scale for each group
func.func @f(%x: tensor<64x64xf32>, %s: tensor<f32>, %e: tensor<4xi32>) {
  // expected-error @+1 {{scale must be tensor<4xf32>, got tensor<f32> [quantize_c8]}}
  %0 = scaled.quantize input %x ends(%e) scale(%s) : tensor<64x64xf32>, tensor<f32>, tensor<4xi32> -> !scaled.tensor<64x64xf32 in 4, #fp8_tensor_delayed>
  return
}

// -----

// quantize_c8: and one static scale for all
func.func @f(%x: tensor<64x64xf32>, %s: tensor<4xf32>, %e: tensor<4xi32>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<4xf32> [quantize_c8]}}
  %0 = scaled.quantize input %x ends(%e) scale(%s) : tensor<64x64xf32>, tensor<4xf32>, tensor<4xi32> -> !scaled.tensor<64x64xf32 in 4, #fp8_tensor_static>
  return
}

// -----

// quantize_c8: and an amax of each
func.func @f(%x: tensor<64x64xf32>, %s: tensor<4xf32>, %e: tensor<4xi32>) {
  // expected-error @+1 {{new_amax must be tensor<4xf32>, got tensor<f32> [quantize_c8]}}
  %0:2 = scaled.quantize input %x ends(%e) scale(%s) : tensor<64x64xf32>, tensor<4xf32>, tensor<4xi32> -> !scaled.tensor<64x64xf32 in 4, #fp8_tensor_delayed>, tensor<f32>
  return
}

// -----

// quantize_c8
func.func @f(%x: tensor<64x64xf32>, %s: tensor<1xf32>) {
  // expected-error @+1 {{scale must be tensor<f32>, got tensor<1xf32> [quantize_c8]}}
  %0 = scaled.quantize input %x scale(%s) : tensor<64x64xf32>, tensor<1xf32> -> !scaled.tensor<64x64xf32, #fp8_tensor_delayed>
  return
}

// -----

// quantize_c8
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{new_amax must be tensor<64xf32>, got tensor<f32> [quantize_c8]}}
  %0:2 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_per_row>, tensor<f32>
  return
}

// -----

// quantize_c8
func.func @f(%x: tensor<64x64xf32>) {
  // expected-error @+1 {{new_amax must be tensor<f32>, got tensor<bf16> [quantize_c8]}}
  %0:2 = scaled.quantize input %x : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #nvfp4_1x16>, tensor<bf16>
  return
}

// -----

// quantize_c8
func.func @f(%x: tensor<64x64xf32>, %r: tensor<i64>) {
  // expected-error @+1 {{rng must be tensor<2xi64>, got tensor<i64> [quantize_c8]}}
  %0 = scaled.quantize grad_output %x rng(%r) : tensor<64x64xf32>, tensor<i64> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>
  return
}

// -----

// quantize_c8
func.func @f(%x: !torch.vtensor<[64,64],f32>, %r: tensor<2xi64>) {
  // expected-error @+1 {{rng must be !torch.vtensor<[2],si64>, got tensor<2xi64> [quantize_c8]}}
  %0 = scaled.quantize grad_output %x rng(%r) : !torch.vtensor<[64,64],f32>, tensor<2xi64> -> !scaled.tensor<64x64xf32, #nvfp4_1x16_stochastic>
  return
}

// -----

// narrow_c1
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32>) {
  // expected-error @+1 {{source must have both copies, got one [narrow_c1]}}
  %0 = scaled.narrow %x : !scaled.tensor<64x64xf32, #mxfp8_1x32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// narrow_c2
func.func @f(%x: !scaled.tensor<64x64xf32, #mxfp8_1x32, #mxfp8_32x1>) {
  // expected-error @+1 {{result must be the source with one of its copies, got !scaled.tensor<64x64xf32, #fp8_1x128> [narrow_c2]}}
  %0 = scaled.narrow %x : !scaled.tensor<64x64xf32, #mxfp8_1x32, #mxfp8_32x1> -> !scaled.tensor<64x64xf32, #fp8_1x128>
  return
}

// -----

// quantize_c9
func.func @f(%x: tensor<9x64xf32>) {
  // expected-error @+1 {{ends must be there for a matrix in groups and only then, got none for !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32> [quantize_c9]}}
  %0 = scaled.quantize input %x : tensor<9x64xf32> -> !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
  return
}

// -----

// quantize_c9
func.func @f(%x: tensor<9x64xf32>, %e: tensor<3xi32>) {
  // expected-error @+1 {{ends must be tensor<2xi32>, got tensor<3xi32> [quantize_c9]}}
  %0 = scaled.quantize input %x ends(%e) : tensor<9x64xf32>, tensor<3xi32> -> !scaled.tensor<9x64xf32 in 2, #mxfp8_1x32>
  return
}
