// Four over six: an NVFP4 block also tries the map of its amax to 4 and keeps
// the smaller error. Included by kernel sources only.
#pragma once

#include "cpu/quantize/encode.h"

namespace steelyard::STEELYARD_ISA {

static constexpr float kFourOverSixRange = 6.0f * 256.0f;

// Sequences of 16 values, one per lane: a 1x16 block, or a row of a 16x16 tile.
// A missing value is zero, which has no error.
struct alignas(64) BlockLanes {
  int64_t count;
  float values[16][kTileSide];
  float amax[kTileSide]; // of the lane's block
  float level_amax[kTileSide], encode[kTileSide],
      decode[kTileSide]; // its second level
};

// One map of every lane: codes, scale bytes, and errors summed along the lane.
struct alignas(64) LaneMap {
  uint8_t codes[16][kTileSide];
  uint8_t bytes[kTileSide];
  float errors[kTileSide];
};

static inline void set_level(BlockLanes &lanes, int64_t lane,
                             const TwoLevel &level) {
  lanes.level_amax[lane] = level.amax;
  lanes.encode[lane] = level.encode;
  lanes.decode[lane] = level.decode;
}

template <bool Squared>
static inline void map_lanes(const BlockLanes &lanes, float stretch,
                             LaneMap &map) {
  alignas(64) float factors[kTileSide], scales[kTileSide];
  for (int64_t j = 0; j < lanes.count; ++j) {
    const float scale = lanes.amax[j] / 6.0f * lanes.encode[j] * stretch;
    const uint32_t byte = encode<E4M3>(at_most(scale, E4M3::max));
    map.bytes[j] = static_cast<uint8_t>(byte);
    scales[j] = decode_e4m3(byte);
    factors[j] = nvfp4_encode_factor(byte, lanes.decode[j]);
    map.errors[j] = 0.0f;
  }
  for (int k = 0; k < 16; ++k)
    for (int64_t j = 0; j < lanes.count; ++j) {
      const float value = lanes.values[k][j];
      const uint32_t code = encode<E2M1>(value * factors[j]);
      const float decoded = decode_e2m1(code) * scales[j] *
                            lanes.level_amax[j] / kFourOverSixRange;
      const float difference = decoded - value;
      map.codes[k][j] = static_cast<uint8_t>(code);
      map.errors[j] += Squared ? difference * difference
                               : float_of(bits_of(difference) & kAbsMask);
    }
}

// The errors of 16 rows of a tile, added as a tree, for each of them.
static inline void sum_tiles(LaneMap &map, int64_t count) {
  for (int64_t first = 0; first < count; first += 16) {
    float *errors = map.errors + first;
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i)
        errors[i] += errors[i + half];
    for (int i = 1; i < 16; ++i)
      errors[i] = errors[0];
  }
}

template <bool Squared>
static inline void choose_map(const BlockLanes &lanes, bool tiles,
                              LaneMap &best) {
  LaneMap four;
  map_lanes<Squared>(lanes, 1.0f, best);
  map_lanes<Squared>(lanes, 1.5f, four);
  if (tiles) {
    sum_tiles(best, lanes.count);
    sum_tiles(four, lanes.count);
  }
  uint8_t keep[kTileSide];
  for (int64_t j = 0; j < lanes.count; ++j) {
    keep[j] = four.errors[j] < best.errors[j] ? 0xff : 0;
    best.bytes[j] = static_cast<uint8_t>((four.bytes[j] & keep[j]) |
                                         (best.bytes[j] & ~keep[j]));
  }
  for (int k = 0; k < 16; ++k)
    for (int64_t j = 0; j < lanes.count; ++j)
      best.codes[k][j] = static_cast<uint8_t>((four.codes[k][j] & keep[j]) |
                                              (best.codes[k][j] & ~keep[j]));
}

// The better map of every block, in `best`; ties keep 6. With `tiles`, 16 lanes
// make a block.
static inline void four_over_six(const BlockLanes &lanes, bool tiles,
                                 FourOverSix measure, LaneMap &best) {
  if (measure == FourOverSix::mse)
    choose_map<true>(lanes, tiles, best);
  else
    choose_map<false>(lanes, tiles, best);
}

} // namespace steelyard::STEELYARD_ISA
