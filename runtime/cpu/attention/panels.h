// Rows turned into columns: queries, and rows of a mask, in the lanes of
// vectors. Included by kernel sources only.
#pragma once

#include "cpu/attention/products.h"
#include "cpu/tiles/row_chunk.h"

namespace steelyard::STEELYARD_ISA {

// 8 rows of 8 values.
static inline void transpose_8x8(const float *const (&rows)[8], int64_t column,
                                 float *out, int64_t out_stride) {
  Words8 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    const Words8 even = load<Words8>(rows[i] + column),
                 odd = load<Words8>(rows[i + 1] + column);
    pairs[i] = zip_low(even, odd);
    pairs[i + 1] = zip_high(even, odd);
  }
  for (int i = 0; i < 8; i += 4)
    for (int half = 0; half < 2; ++half) {
      const Longs4 low = as<Longs4>(pairs[i + half]),
                   high = as<Longs4>(pairs[i + half + 2]);
      fours[i + 2 * half] = as<Words8>(zip_low(low, high));
      fours[i + 2 * half + 1] = as<Words8>(zip_high(low, high));
    }
  for (int i = 0; i < 4; ++i) {
    store(out + i * out_stride, join_low(fours[i], fours[i + 4]));
    store(out + (i + 4) * out_stride, join_high(fours[i], fours[i + 4]));
  }
}

// Columns [first, first + n) of at most kPanel rows as [n][kPanel]; rows that
// are missing are zeros. `buffer` holds 8 rows.
static inline void fill_panel(const Matrix &x, int64_t row, int64_t rows,
                              int64_t first, int64_t n, float *buffer,
                              float *out) {
  for (int64_t i = 0; i < kPanel; i += 8) {
    const float *found[8];
    for (int64_t j = 0; j < 8; ++j) {
      float *own = buffer + j * n;
      found[j] = own;
      if (i + j < rows)
        found[j] = row_chunk(x, row + i + j, first, n, own);
      else
        std::memset(own, 0, n * sizeof *own);
    }
    int64_t column = 0;
    for (; column + 8 <= n; column += 8)
      transpose_8x8(found, column, out + column * kPanel + i, kPanel);
    for (; column < n; ++column)
      for (int64_t j = 0; j < 8; ++j)
        out[column * kPanel + i + j] = found[j][column];
  }
}

} // namespace steelyard::STEELYARD_ISA
