// The functions that register each kernel family in steelyard.runtime._cpu, and
// how nanobind converts the tuples of cpu/bind/arguments.h.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

namespace steelyard {

void bind_amax(nanobind::module_ &m);
void bind_attention(nanobind::module_ &m);
void bind_bound(nanobind::module_ &m);
void bind_contract(nanobind::module_ &m);
void bind_dequantize(nanobind::module_ &m);
void bind_elementwise(nanobind::module_ &m);
void bind_fingerprint(nanobind::module_ &m);
void bind_gemm(nanobind::module_ &m);
void bind_grouped(nanobind::module_ &m);
void bind_measure(nanobind::module_ &m);
void bind_produce(nanobind::module_ &m);
void bind_quantize(nanobind::module_ &m);
void bind_scales(nanobind::module_ &m);
void bind_tape(nanobind::module_ &m);
void bind_transpose(nanobind::module_ &m);

} // namespace steelyard
