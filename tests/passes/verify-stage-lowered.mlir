// RUN: steelyard-opt %s -p 'scaled-verify-stage{stage=lowered}' --split-input-file --verify-diagnostics

func.func private @advance_rng_0(tensor<2xi64>) -> tensor<2xi64> attributes {scaled.config = {}, scaled.destinations, scaled.device = "cpu", scaled.kernel = "advance_rng", scaled.operands = ["rng"], scaled.results = ["result"]}
func.func @holds(%x: tensor<2xi64>) -> tensor<2xi64> attributes {scaled.arena = 512 : i64} {
  %0 = func.call @advance_rng_0(%x) {scaled.offsets = array<i64: 0>} : (tensor<2xi64>) -> tensor<2xi64>
  return %0 : tensor<2xi64>
}

// -----

// expected-error @+1 {{attribute 'scaled.operands' must be an array of strings, got [0] [stage_c5]}}
func.func private @quantize_0(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "quantize", scaled.operands = [0]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
func.func private @make() -> !scaled.tensor<tensor<8x64xf32>, #mx, none>
func.func @quantized_tensor() {
  // expected-error @+1 {{must not have a quantized tensor as a result in a lowered module [stage_c2]}}
  %0 = func.call @make() : () -> !scaled.tensor<tensor<8x64xf32>, #mx, none>
  return
}

// -----

// The settings, operands and results of a declared kernel are those of its operation.
// expected-error @+1 {{advance_rng has the operands (rng), got (state) [call_c3]}}
func.func private @advance_rng_0(tensor<2xi64>) -> tensor<2xi64> attributes {scaled.config = {}, scaled.device = "cpu", scaled.kernel = "advance_rng", scaled.operands = ["state"], scaled.results = ["result"]}
