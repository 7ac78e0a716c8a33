// The random Hadamard transform of 16 rows at once, one column per lane.
// Included by kernel sources only.
#pragma once

#include "cpu/simd/simd.h"
#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

static constexpr float kHadamardSigns[16] = {1,  1,  1,  -1, 1,  -1, -1, -1,
                                             -1, -1, -1, 1,  -1, 1,  -1, -1};

struct alignas(64) HadamardGroup {
  float values[16][kTileSide];
};

// `round_to_bf16` of 8 values.
static inline Floats8 round_lanes_to_bf16(Floats8 values) {
  const Words8 bits = (Words8)values;
  const Words8 rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  const Words8 is_nan = (Words8)((SignedWords8)(bits & kAbsMask) >
                                 static_cast<int32_t>(kInfinity));
  return (Floats8)((rounded & ~is_nan) | (0x7fc00000 & is_nan));
}

// Rounds 16 values of 8 columns to bf16, transforms them (the signs,
// butterflies and 1/4) and rounds again, all in registers. `in` may be `out`.
static inline void transform_8(const float *in, int64_t stride, float *out) {
  Floats8 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    std::memcpy(&v[i], in + i * stride, sizeof v[i]);
    v[i] = round_lanes_to_bf16(v[i]) * kHadamardSigns[i];
  }
#pragma GCC unroll 4
  for (int stride = 1; stride < 16; stride *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & stride)
        continue;
      const Floats8 a = v[i], b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    v[i] = round_lanes_to_bf16(v[i] * 0.25f);
    std::memcpy(out + i * kTileSide, &v[i], sizeof v[i]);
  }
}

// The 16 rows from `first` with zeros in the place of missing ones, and of what
// is missing to 8 columns.
static inline void stage_rows(const Tile &tile, int64_t first,
                              HadamardGroup &group) {
  const int64_t whole = (tile.columns + 7) / 8 * 8;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t present = first + i < tile.rows ? tile.columns : 0;
    if (present)
      std::memcpy(group.values[i], tile.at(first + i), present * sizeof(float));
    std::memset(group.values[i] + present, 0,
                (whole - present) * sizeof(float));
  }
}

// Rows [first, first + 16) of the tile, missing ones as zero, transformed down
// each column and rounded to bf16.
static inline void transform_rows(const Tile &tile, int64_t first,
                                  HadamardGroup &group) {
  const bool is_whole = first + 16 <= tile.rows && tile.columns % 8 == 0;
  if (!is_whole)
    stage_rows(tile, first, group);
  const float *in = is_whole ? tile.at(first) : group.values[0];
  const int64_t stride = is_whole ? tile.stride : kTileSide;
  for (int64_t j = 0; j < tile.columns; j += 8)
    transform_8(in + j, stride, group.values[0] + j);
}

} // namespace steelyard::STEELYARD_ISA
