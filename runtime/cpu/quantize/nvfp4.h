// What the kernels of NVFP4 share: its two levels of scales, stochastic
// rounding, and codes in pairs. Included by kernel sources only.
#pragma once

#include "cpu/quantize/encode.h"
#include "cpu/quantize/four_over_six.h"
#include "cpu/quantize/hadamard.h"
#include "cpu/quantize/philox.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kBlock = 16;

// Nearest rounding under one level for the tensor, and no transform.
static inline bool is_plain(const CopyCall &copy) {
  return !copy.stochastic && !copy.row_scaled && !copy.rht &&
         copy.four_over_six == FourOverSix::none;
}

// A given second level as the factor of decoded values.
static inline float given_multiplier(const CopyCall &copy) {
  return copy.is_divisor ? 1.0f / *copy.amax : *copy.amax;
}

static inline TwoLevel level_of(const CopyCall &copy, int64_t stored_row) {
  if (copy.is_static)
    return {*copy.amax, static_encode_factor(*copy.amax, copy.is_divisor),
            given_multiplier(copy)};
  const float range = copy.four_over_six == FourOverSix::none
                          ? 6.0f * 448.0f
                          : kFourOverSixRange;
  return nvfp4_tensor_scale(copy.amax[copy.row_scaled ? stored_row : 0], range);
}

// The bits of the amax that an encoding is chosen by: NaN where a given second
// level is so large that factors are 0 or NaN.
static inline int32_t amax_for_range(const CopyCall &copy, int32_t largest) {
  const bool usual =
      !copy.is_static || given_multiplier(copy) * 448.0f <= kFloatMax;
  return usual ? largest : 0x7fc00000;
}

static inline void scale_blocks(const int32_t *__restrict amax, int64_t n,
                                const TwoLevel &level,
                                uint8_t *__restrict bytes,
                                float *__restrict factors) {
  const float encode = level.encode, decode = level.decode;
  // Two loops: in one, the compiler threads branches and does not vectorize.
  for (int64_t b = 0; b < n; ++b)
    bytes[b] =
        static_cast<uint8_t>(nvfp4_block_scale(float_of(amax[b]), encode));
  for (int64_t b = 0; b < n; ++b)
    factors[b] = nvfp4_encode_factor(bytes[b], decode);
}

// Rounds up with the probability of the distance: adds byte / 256 of a step,
// which is exact, and truncates. Above 6 every draw is 6.
static inline uint32_t encode_stochastic(float value, uint32_t random) {
  const uint32_t bits = bits_of(value);
  const int32_t magnitude = static_cast<int32_t>(bits & kAbsMask);
  const int32_t limit = static_cast<int32_t>(bits_of(E2M1::max)),
                one = static_cast<int32_t>(bits_of(1.0f));
  const int32_t clamped = magnitude < limit ? magnitude : limit;
  const int32_t exponent = clamped & static_cast<int32_t>(kInfinity);
  const int32_t binade = exponent > one ? exponent : one;
  const float step = float_of(binade - (1 << 23));
  const float dithered =
      static_cast<float>(static_cast<int32_t>(random)) * 0x1p-8f * step +
      float_of(clamped);
  // Exponent and first mantissa bit: 0.5 is 252, 1 is 254, and codes count on.
  const int32_t head = static_cast<int32_t>(bits_of(dithered)) >> 22;
  const int32_t tail = head > 251 ? 1 : 0;
  const int32_t counted = head - 252 > tail ? head - 252 : tail;
  const int32_t code = counted < 7 ? counted : 7;
  const bool is_nan = magnitude > static_cast<int32_t>(kInfinity);
  return is_nan ? E2M1::nan : code | (bits >> 28 & 8);
}

static inline const uint8_t *random_bytes(const CopyCall &copy,
                                          const Tile &tile, int64_t i,
                                          uint8_t *scratch) {
  const PhiloxKey key{copy.seed, copy.offset, copy.random_copy};
  const uint64_t first = copy.random_first + (tile.row + i) * copy.random_row +
                         tile.column * copy.random_column;
  return philox_bytes(key, first, copy.random_column, tile.columns, scratch);
}

// One factor per column.
static inline void encode_row_stochastic(const float *x, int64_t n,
                                         const float *factors,
                                         const uint8_t *random, uint8_t *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] =
        static_cast<uint8_t>(encode_stochastic(x[j] * factors[j], random[j]));
}

// A lane holds up to 16 values, `step` apart; the rest of it is zero.
static inline void load_lane(const float *x, int64_t step, int64_t n,
                             int64_t lane, BlockLanes &lanes) {
  for (int64_t k = 0; k < kBlock; ++k)
    lanes.values[k][lane] = k < n ? x[k * step] : 0.0f;
}

// The 16 rows from `first` as a tile of their own, transformed if the copy is.
template <class T>
static inline TileOf<T> group_of(const TileOf<T> &tile, int64_t first,
                                 const CopyCall &copy, HadamardGroup &group) {
  TileOf<T> part = tile;
  part.row += first;
  part.data = tile.at(first);
  part.rows = smaller(kBlock, tile.rows - first);
  if constexpr (std::is_same_v<T, float>)
    if (copy.rht) {
      transform_rows(tile, first, group);
      part.data = group.values[0];
      part.stride = kTileSide;
      part.rows = kBlock;
    }
  return part;
}

// Codes of pairs of rows, which share a byte of the transposed rows of the
// copy.
static inline void store_pairs(const TilePlace &tile, int64_t rows,
                               const CodeTile &pairs, const CopyCall &copy) {
  transpose_bytes(pairs.values[0], kTileSide, (rows + 1) / 2, tile.columns,
                  copy.codes + tile.column * copy.codes_stride + tile.row / 2,
                  copy.codes_stride, copy.streamed);
}

static inline void store_columns(const TilePlace &tile, int64_t rows,
                                 const CodeTile &codes, const CopyCall &copy) {
  CodeTile pairs;
  for (int64_t i = 0; i < rows; i += 2)
    for (int64_t j = 0; j < tile.columns; ++j)
      pairs.values[i / 2][j] = static_cast<uint8_t>(
          codes.values[i][j] | (i + 1 < rows ? codes.values[i + 1][j] : 0)
                                   << 4);
  store_pairs(tile, rows, pairs, copy);
}

} // namespace steelyard::STEELYARD_ISA
