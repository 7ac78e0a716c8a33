// The functions that register each kernel family in steelyard.runtime._cpu.
//
// Tensors come as integers (data_ptr), shapes and strides: an ndarray argument
// costs twenty times as much. Python has checked every one of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>

#include "cpu/tiles/matrix.h"

namespace steelyard {

// data, dtype, rows, columns, row stride, column stride
using MatrixArguments =
    std::tuple<uintptr_t, int, int64_t, int64_t, int64_t, int64_t>;

inline Matrix matrix(const MatrixArguments &x) {
  const auto &[data, dtype, rows, columns, row_stride, column_stride] = x;
  return {reinterpret_cast<const void *>(data),
          static_cast<Dtype>(dtype),
          rows,
          columns,
          row_stride,
          column_stride};
}

void bind_amax(nanobind::module_ &m);
void bind_quantize(nanobind::module_ &m);
void bind_dequantize(nanobind::module_ &m);
void bind_fingerprint(nanobind::module_ &m);
void bind_produce(nanobind::module_ &m);
void bind_gemm(nanobind::module_ &m);
void bind_transpose(nanobind::module_ &m);
void bind_scales(nanobind::module_ &m);

} // namespace steelyard
