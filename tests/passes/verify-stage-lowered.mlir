// RUN: steelyard-opt %s -p 'scaled-verify-stage{stage=lowered}' --split-input-file --verify-diagnostics

func.func private @quantize_0(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "cpu.quantize.mx", scaled.operands = ["source"], scaled.results = ["row.codes"]}
func.func @holds(%x: tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.arena = 512 : i64} {
  %0 = func.call @quantize_0(%x) {scaled.offsets = array<i64: 0>} : (tensor<8x64xf32>) -> tensor<8x64xi8>
  return %0 : tensor<8x64xi8>
}

// -----

// expected-error @+1 {{attribute 'scaled.operands' must be an array of strings, got [0] [stage_c5]}}
func.func private @quantize_0(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "cpu.quantize.mx", scaled.operands = [0]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
func.func private @make() -> !scaled.tensor<tensor<8x64xf32>, #mx, none>
func.func @quantized_tensor() {
  // expected-error @+1 {{must not have a quantized tensor as a result in a lowered module [stage_c2]}}
  %0 = func.call @make() : () -> !scaled.tensor<tensor<8x64xf32>, #mx, none>
  return
}
