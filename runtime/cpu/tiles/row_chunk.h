// Part of a row of a matrix as float32. Included by kernel sources only.
#pragma once

#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

// Elements [first, first + n) of a row: where they are, or in `buffer`.
static inline const float *row_chunk(const Matrix &x, int64_t row,
                                     int64_t first, int64_t n, float *buffer) {
  const int64_t index = row * x.row_stride + first * x.column_stride;
  if (x.dtype == Dtype::f32) {
    const float *values = static_cast<const float *>(x.data) + index;
    if (x.column_stride == 1)
      return values;
    for (int64_t j = 0; j < n; ++j)
      buffer[j] = values[j * x.column_stride];
    return buffer;
  }
  const uint16_t *halves = static_cast<const uint16_t *>(x.data) + index;
  if (x.column_stride == 1)
    widen_row(halves, x.dtype, n, buffer);
  else
    for (int64_t j = 0; j < n; ++j)
      buffer[j] = widen(halves[j * x.column_stride], x.dtype);
  return buffer;
}

} // namespace steelyard::STEELYARD_ISA
