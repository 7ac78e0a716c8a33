// The functions that register each kernel family in steelyard.runtime._cpu.
#pragma once

#include <nanobind/nanobind.h>

namespace steelyard {

void bind_amax(nanobind::module_ &m);
void bind_attention(nanobind::module_ &m);
void bind_bound(nanobind::module_ &m);
void bind_contract(nanobind::module_ &m);
void bind_dequantize(nanobind::module_ &m);
void bind_fingerprint(nanobind::module_ &m);
void bind_gemm(nanobind::module_ &m);
void bind_grouped(nanobind::module_ &m);
void bind_produce(nanobind::module_ &m);
void bind_quantize(nanobind::module_ &m);
void bind_scales(nanobind::module_ &m);
void bind_transpose(nanobind::module_ &m);

} // namespace steelyard
