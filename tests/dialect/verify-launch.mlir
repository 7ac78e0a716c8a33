// RUN: steelyard-opt %s --split-input-file --verify-diagnostics

// The constraints of scaled.allocate, launch, torch_call and contiguous.

// allocate_c1
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{each size must be an integer that is not negative or text, got [-3] [allocate_c1]}}
  scaled.allocate temporary0(-3) of f32
}

// -----

// allocate_c2
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{element must be one of f32, bf16, f16, ui8, i8, got f64 [allocate_c2]}}
  scaled.allocate temporary0(3) of f64
}

// -----

// launch_c1
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{kernel must be a symbol, as in @amax_f32, got "amax_f32" [launch_c1]}}
  "scaled.launch"() {kernel = "amax_f32", blocks = 1, arguments = []} : () -> ()
}

// -----

// launch_c2
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{blocks must be an integer that is not negative or text, got -1 : i64 [launch_c2]}}
  scaled.launch @amax_f32() blocks(-1)
}

// -----

// launch_c3
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{each argument must be text or an integer, got [1.500000e+00] [launch_c3]}}
  "scaled.launch"() {kernel = @amax_f32, blocks = 1, arguments = [1.5]} : () -> ()
}

// -----

// torch_call_c1
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{function must be one of zero, copy, product, scaled_product, batched_product, grouped_product, product_of_groups, largest_of_ranks, pick_amax, got fill [torch_call_c1]}}
  scaled.torch_call fill("out.row.amax")
}

// -----

// torch_call_c2
module attributes {scaled.plan = @quantize_0} {
  // expected-error @+1 {{the arguments of copy must be a tensor, a tensor, got ["out.row.amax"] [torch_call_c2]}}
  scaled.torch_call copy("out.row.amax")
}

// -----

// contiguous_c1
func.func @f(%x: tensor<4xf32>) {
  // expected-error @+1 {{source and result must be ranked tensors alike, got tensor<4xf32> and tensor<4xf16> [contiguous_c1]}}
  %0 = scaled.contiguous %x : tensor<4xf32> -> tensor<4xf16>
  return
}
