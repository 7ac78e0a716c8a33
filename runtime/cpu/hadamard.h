// The random Hadamard transform of 16 rows at once, one column a lane. Included
// by kernel sources only.
#pragma once

#include "tile.h"

namespace steelyard::STEELYARD_ISA {

static constexpr float kHadamardSigns[16] = {1,  1,  1,  -1, 1,  -1, -1, -1,
                                             -1, -1, -1, 1,  -1, 1,  -1, -1};

struct alignas(64) HadamardGroup {
  float values[16][kTileSide];
};

typedef float Lanes8 __attribute__((vector_size(32)));

// In place: the signs, butterflies and 1/4 of 8 columns, in registers.
static inline void transform_8(float (*rows)[kTileSide]) {
  Lanes8 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    std::memcpy(&v[i], rows[i], sizeof v[i]);
    v[i] *= kHadamardSigns[i];
  }
#pragma GCC unroll 4
  for (int stride = 1; stride < 16; stride *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & stride)
        continue;
      const Lanes8 a = v[i], b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    v[i] *= 0.25f;
    std::memcpy(rows[i], &v[i], sizeof v[i]);
  }
}

static inline void round_row_to_bf16(const float *in, int64_t n, float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] = round_to_bf16(in[j]);
}

// Rows [first, first + 16) of the tile, missing ones as zero, transformed down
// each column and rounded to bf16.
static inline void transform_rows(const Tile &tile, int64_t first,
                                  HadamardGroup &group) {
  const int64_t n = tile.columns, whole = (n + 7) / 8 * 8;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t present = first + i < tile.rows ? n : 0;
    if (present)
      round_row_to_bf16(tile.at(first + i), n, group.values[i]);
    std::memset(group.values[i] + present, 0,
                (whole - present) * sizeof(float));
  }
  for (int64_t j = 0; j < whole; j += 8)
    transform_8(reinterpret_cast<float (*)[kTileSide]>(&group.values[0][j]));
  for (auto &row : group.values)
    round_row_to_bf16(row, n, row);
}

} // namespace steelyard::STEELYARD_ISA
