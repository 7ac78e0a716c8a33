// RUN: steelyard-opt %s -p 'scaled-generate-kernels{target=cuda:sm_90a}' --split-input-file --verify-diagnostics

module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{kernel must be a gpu.module with scaled.code, got @amax_bf16; run scaled-plan-launches}}
  scaled.launch @amax_bf16() blocks(1)
}

// -----

module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
  scaled.launch @amax_bf16() blocks(1)
}
// expected-error @+1 {{scaled.code must describe a kernel (amax, compute_scale, dequantize,}}
gpu.module @amax_bf16 attributes {scaled.code = {kernel = "median", source = {dtype = "bf16"}}} {
}

// -----

module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
  scaled.launch @amax_bf16() blocks(1)
}
// expected-error @+1 {{there is no field 'side'}}
gpu.module @amax_bf16 attributes {scaled.code = {kernel = "amax", side = 3 : i64, source = {dtype = "bf16"}}} {
}

// -----

module @quantize_0_launches attributes {scaled.plan = @quantize_0} {
  scaled.launch @amax_bf16() blocks(1)
}
// expected-error @+1 {{scaled.code must describe a kernel}}
gpu.module @amax_bf16 attributes {scaled.code = {kernel = "amax", source = {dtype = "f64"}}} {
}
