// RUN: steelyard-opt %s -p 'scaled-select-kernels{target=cpu}' --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p 'scaled-plan-launches{target=cuda:sm_100a}' --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p scaled-plan-memory --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p scaled-fuse-caches --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p scaled-fuse-appends --split-input-file --verify-diagnostics
// RUN: steelyard-opt %s -p 'scaled-lower-concatenation{target=cpu}' --split-input-file --verify-diagnostics

// A declaration that lacks what it must say, or says it wrongly, is named by each pass that reads it.

// expected-error @+1 {{'func.func' op scaled.config must be a dictionary, got none [call_c1]}}
func.func private @f(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "quantize"}

// -----

// expected-error @+1 {{scaled.kernel must be one of attention, attention_backward, block, concatenate, elementwise, gemm, epilogue, quantize, produce_quantize, stored, dequantize, transpose, pack, grouped_quantize, grouped_stored, grouped_pack, grouped_gemm, lookup, write_rows, positions, add_rows, pad, unpad, turn, swizzle, measure_quantize, measure_product, measure_influence, switch, rows, columns, norm, norm_backward, amax, update_scale, count_saturated, advance_rng, got cpu.gemm.mx [call_c1]}}
func.func private @f() attributes {scaled.kernel = "cpu.gemm.mx"}

// -----

// expected-error @+1 {{scaled.kernel must be a string, got 7 : i64 [call_c1]}}
func.func private @f() attributes {scaled.kernel = 7}

// -----

// expected-error @+1 {{scaled.operands must be an array of names, got "source" [call_c1]}}
func.func private @f(tensor<2xi64>) -> tensor<2xi64> attributes {scaled.kernel = "advance_rng", scaled.config = {}, scaled.operands = "source", scaled.results = ["result"]}

// -----

// expected-error @+1 {{scaled.results must name each of the 1 that the function's type has, got [] [call_c1]}}
func.func private @f(tensor<2xi64>) -> tensor<2xi64> attributes {scaled.kernel = "advance_rng", scaled.config = {}, scaled.operands = ["rng"], scaled.results = []}

// -----

// expected-error @+1 {{gemm needs the setting 'kind' in scaled.config, got none [call_c2]}}
func.func private @f() attributes {scaled.kernel = "gemm", scaled.config = {}, scaled.operands = [], scaled.results = []}

// -----

// expected-error @+1 {{amax has no setting 'by_row'; its settings: per_row, rht [call_c2]}}
func.func private @f(tensor<8x64xf32>) -> tensor<f32> attributes {scaled.kernel = "amax", scaled.config = {by_row = true}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{epilogue must be one of none, relu, gelu, gelu_tanh, silu, got tanh [call_c2]}}
func.func private @f(tensor<8x64xf32>) -> tensor<8x64xf32> attributes {scaled.kernel = "epilogue", scaled.config = {epilogue = "tanh"}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{scheme must be a #scaled.scheme, got "mx" [call_c2]}}
func.func private @f(tensor<8x64xi8>, tensor<f32>) -> tensor<8x64xf32> attributes {scaled.kernel = "dequantize", scaled.config = {scheme = "mx", shape = array<i64: 8, 64>, usage = "rowwise"}, scaled.operands = ["row.codes", "row.scales"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{multiples must hold sizes of at least 1, got [16, 0] [call_c2]}}
func.func private @f(tensor<8x64xf32>) -> tensor<16x64xf32> attributes {scaled.kernel = "pad", scaled.config = {multiples = array<i64: 16, 0>}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{multiples must have one entry per dim, 2, got 1 [call_c2]}}
func.func private @f(tensor<8x64xf32>) -> tensor<16x64xf32> attributes {scaled.kernel = "pad", scaled.config = {multiples = array<i64: 16>}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{quantize needs a scheme, row or col, got none [call_c2]}}
func.func private @f(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "quantize", scaled.config = {role = "input"}, scaled.operands = ["source"], scaled.results = ["row.codes"]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// expected-error @+1 {{batch_dims must be at least 0 and less than 2, got 2 [call_c2]}}
func.func private @f() attributes {scaled.kernel = "gemm", scaled.config = {batch_dims = 2, kind = "fprop", lhs = #mx, lhs_shape = array<i64: 8, 64>, rhs = #mx, rhs_shape = array<i64: 8, 64>}, scaled.operands = [], scaled.results = []}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// expected-error @+1 {{shape must have at least one dim, got none [call_c2]}}
func.func private @f(tensor<8x64xi8>, tensor<8x2xi8>) -> tensor<8x64xf32> attributes {scaled.kernel = "dequantize", scaled.config = {scheme = #mx, shape = array<i64>, usage = "rowwise"}, scaled.operands = ["row.codes", "row.scales"], scaled.results = ["result"]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// expected-error @+1 {{quantize has the operands (source) and may have (scale, rng), got (scale, source) [call_c3]}}
func.func private @f(tensor<f32>, tensor<8x64xf32>) -> (tensor<8x64xi8>, tensor<8x2xi8>) attributes {scaled.kernel = "quantize", scaled.config = {role = "input", row = #mx}, scaled.operands = ["scale", "source"], scaled.results = ["row.codes", "row.scales"]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// expected-error @+1 {{quantize has the results (row.codes, row.scales) and may have (new_amax), got (row.codes) [call_c3]}}
func.func private @f(tensor<8x64xf32>) -> tensor<8x64xi8> attributes {scaled.kernel = "quantize", scaled.config = {role = "input", row = #mx}, scaled.operands = ["source"], scaled.results = ["row.codes"]}

// -----

// expected-error @+1 {{size of unpad must be a size, got tensor<f32> [call_c3]}}
func.func private @f(tensor<8x64xf32>, tensor<f32>) -> tensor<?x64xf32> attributes {scaled.kernel = "unpad", scaled.config = {}, scaled.operands = ["source", "size"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{source of amax must be a ranked tensor, got index [call_c3]}}
func.func private @f(index) -> tensor<f32> attributes {scaled.kernel = "amax", scaled.config = {}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{scaled.device must be one of cpu, cuda, custom, got abacus [call_c4]}}
func.func private @f(tensor<8x64xf32>) -> tensor<f32> attributes {scaled.device = "abacus", scaled.kernel = "amax", scaled.config = {}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{amax with these settings does not run on the device custom [call_c4]}}
func.func private @f(tensor<8x64xf32>) -> tensor<f32> attributes {scaled.device = "custom", scaled.kernel = "amax", scaled.config = {}, scaled.operands = ["source"], scaled.results = ["result"]}

// -----

#own = #scaled.scheme<i8, "tensor", f32, {custom = "Mine"}>
// expected-error @+1 {{quantize with these settings runs on the device custom, got cuda [call_c4]}}
func.func private @f(tensor<8x64xf32>) -> !scaled.tensor<tensor<8x64xf32>, #own, none> attributes {scaled.device = "cuda", scaled.kernel = "quantize", scaled.config = {layer = "up", role = "input", row = #own}, scaled.operands = ["source"], scaled.results = ["storage"]}

// -----

#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
// expected-error @+1 {{row.scales must be a tensor [8,2] of i8, as its scheme stores it, got tensor<8x3xi8> [call_c5]}}
func.func private @f(tensor<8x64xf32>) -> (tensor<8x64xi8>, tensor<8x3xi8>) attributes {scaled.kernel = "quantize", scaled.config = {role = "input", row = #mx}, scaled.operands = ["source"], scaled.results = ["row.codes", "row.scales"]}

// -----

#packed = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {layout = "packed", second_level = "tensor"}>
#fp4 = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
// expected-error @+1 {{a packed copy must have a known shape, got [?,64] [call_c5]}}
func.func private @f(tensor<8x32xi8>, tensor<8x4xi8>, tensor<f32>, tensor<452xi8>) -> tensor<8x8xf32> attributes {scaled.kernel = "gemm", scaled.config = {kind = "fprop", lhs = #fp4, lhs_shape = array<i64: 8, 64>, rhs = #packed, rhs_shape = array<i64: -1, 64>}, scaled.operands = ["lhs.codes", "lhs.scales", "lhs.amax", "rhs.packed"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{query, key, value and result must have 4 dims of one of f32, bf16, f16, got 4 dims of f32, 3 dims of f32, 4 dims of f32, 4 dims of f32 [attention_c1]}}
func.func private @f(tensor<1x2x3x8xf32>, tensor<2x3x8xf32>, tensor<1x2x3x8xf32>) -> (tensor<1x2x3x8xf32>, tensor<1x2x3xf32>) attributes {scaled.kernel = "attention", scaled.config = {}, scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// -----

// expected-error @+1 {{query, key, value and result must have 4 dims of one of f32, bf16, f16, got 4 dims of f32, 4 dims of f32, 4 dims of bf16, 4 dims of f32 [attention_c1]}}
func.func private @f(tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xbf16>) -> (tensor<1x2x3x8xf32>, tensor<1x2x3xf32>) attributes {scaled.kernel = "attention", scaled.config = {}, scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// -----

// expected-error @+1 {{mask must have 2 or 4 dims of f32, got 2 dims of i1 [attention_c2]}}
func.func private @f(tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<3x3xi1>) -> (tensor<1x2x3x8xf32>, tensor<1x2x3xf32>) attributes {scaled.kernel = "attention", scaled.config = {}, scaled.operands = ["query", "key", "value", "mask"], scaled.results = ["result", "logsumexp"]}

// -----

// expected-error @+1 {{logsumexp must have 3 dims of f32, got 4 dims of f32 [attention_c3]}}
func.func private @f(tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>) -> (tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>) attributes {scaled.kernel = "attention", scaled.config = {}, scaled.operands = ["query", "key", "value"], scaled.results = ["result", "logsumexp"]}

// -----

// expected-error @+1 {{scaled.config must be a dictionary, got unit [call_c1]}}
func.func private @f(tensor<4x8xf32>, tensor<1xi64>, tensor<1x8xf32>) -> tensor<4x8xf32> attributes {scaled.kernel = "write_rows", scaled.destinations, scaled.config = unit, scaled.operands = ["target", "indices", "rows"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{scaled.config must be a dictionary, got [] [call_c1]}}
func.func private @f(tensor<4x8xf32>, tensor<1xi64>, tensor<1x8xf32>) -> tensor<4x8xf32> attributes {scaled.kernel = "write_rows", scaled.destinations, scaled.config = [], scaled.operands = ["target", "indices", "rows"], scaled.results = ["result"]}

// -----

// expected-error @+1 {{scaled.config must be a dictionary, got "x" [call_c1]}}
func.func private @f(tensor<4x8xf32>, tensor<1xi64>, tensor<1x8xf32>) -> tensor<4x8xf32> attributes {scaled.kernel = "write_rows", scaled.destinations, scaled.config = "x", scaled.operands = ["target", "indices", "rows"], scaled.results = ["result"]}
