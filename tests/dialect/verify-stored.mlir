// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.stored.

// stored_c1
func.func @f(%w: tensor<64x64xi8>) {
  // expected-error @+1 {{source must be a ranked tensor of f32, bf16, f16, got tensor<64x64xi8> [stored_c1]}}
  %0 = scaled.stored %w : tensor<64x64xi8> -> !scaled.tensor<64x64xf32, #mxfp8_1x32>
  return
}

// -----

// stored_c2
func.func @f(%w: tensor<64x64xf32>) {
  // expected-error @+1 {{result must be a !scaled.tensor, got tensor<64x64xf32> [stored_c2]}}
  %0 = scaled.stored %w : tensor<64x64xf32> -> tensor<64x64xf32>
  return
}

// -----

// stored_c2
func.func @f(%w: tensor<64x64xf32>) {
  // expected-error @+1 {{result must stand for [64,64] of f32, got [64,32] of f32 [stored_c2]}}
  %0 = scaled.stored %w : tensor<64x64xf32> -> !scaled.tensor<64x32xf32, #mxfp8_1x32>
  return
}

// -----

// stored_c3
func.func @f(%w: tensor<64x64xf32>) {
  // expected-error @+1 {{result must have one rowwise copy of a built-in scheme in the compact layout, got !scaled.tensor<64x64xf32, #mxfp8_1x32, #mxfp8_32x1> [stored_c3]}}
  %0 = scaled.stored %w : tensor<64x64xf32> -> !scaled.tensor<64x64xf32, #mxfp8_1x32, #mxfp8_32x1>
  return
}
