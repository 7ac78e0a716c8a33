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

// Rows [first, first + 16) of the tile, missing ones as zero, transformed down
// each column and rounded to bf16.
static inline void transform_rows(const Tile &tile, int64_t first,
                                  HadamardGroup &group) {
  const int64_t n = tile.columns;
  for (int64_t i = 0; i < 16; ++i) {
    float *out = group.values[i];
    if (first + i >= tile.rows) {
      for (int64_t j = 0; j < n; ++j)
        out[j] = 0.0f;
      continue;
    }
    const float *in = tile.at(first + i);
    for (int64_t j = 0; j < n; ++j)
      out[j] = from_bf16(to_bf16(in[j])) * kHadamardSigns[i];
  }
  for (int64_t stride = 1; stride < 16; stride *= 2)
    for (int64_t i = 0; i < 16; ++i) {
      if (i & stride)
        continue;
      float *low = group.values[i], *high = group.values[i + stride];
      for (int64_t j = 0; j < n; ++j) {
        const float a = low[j], b = high[j];
        low[j] = a + b;
        high[j] = a - b;
      }
    }
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t j = 0; j < n; ++j)
      group.values[i][j] = from_bf16(to_bf16(group.values[i][j] * 0.25f));
}

} // namespace steelyard::STEELYARD_ISA
