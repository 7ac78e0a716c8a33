// Four over six: an NVFP4 block also tries the map of its amax to 4 and keeps
// the smaller error. Included by kernel sources only.
#pragma once

#include "encode.h"

namespace steelyard::STEELYARD_ISA {

static constexpr float kFourOverSixRange = 6.0f * 256.0f;

struct Candidate {
  uint8_t codes[16][16];
  uint8_t byte;
  float error;
};

// A block of up to 16 rows of 16 values; missing ones are zero, which has no
// error.
struct alignas(64) Block16 {
  float values[16][16];
  int64_t rows;
};

static inline void load_block(const float *data, int64_t stride, int64_t rows,
                              int64_t columns, Block16 &block) {
  block.rows = rows;
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(block.values[i], data + i * stride, columns * sizeof(float));
    std::memset(block.values[i] + columns, 0, (16 - columns) * sizeof(float));
  }
}

static inline float block_error(float difference, FourOverSix measure) {
  return measure == FourOverSix::mse ? difference * difference
                                     : float_of(bits_of(difference) & kAbsMask);
}

static inline void try_scale(const Block16 &block, float scale,
                             const TwoLevel &level, FourOverSix measure,
                             Candidate &out) {
  out.byte = static_cast<uint8_t>(encode<E4M3>(at_most(scale, E4M3::max)));
  const float factor = nvfp4_encode_factor(out.byte, level.decode);
  const float decoded_scale = decode_e4m3(out.byte);
  float errors[16] = {};
  for (int64_t i = 0; i < block.rows; ++i) {
    const float *x = block.values[i];
    alignas(64) float each[16];
    for (int j = 0; j < 16; ++j) {
      const uint32_t code = encode<E2M1>(x[j] * factor);
      out.codes[i][j] = static_cast<uint8_t>(code);
      const float decoded =
          decode_e2m1(code) * decoded_scale * level.amax / kFourOverSixRange;
      each[j] = block_error(decoded - x[j], measure);
    }
    for (int j = 0; j < 16; ++j)
      errors[i] += each[j];
  }
  // Rows are added as a tree: 8, 4, 2, 1.
  for (int64_t half = block.rows > 1 ? 8 : 0; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i)
      errors[i] += errors[i + half];
  out.error = errors[0];
}

// Leaves the better map in `best`; ties keep 6.
static inline void four_over_six(const Block16 &block, float amax,
                                 const TwoLevel &level, FourOverSix measure,
                                 Candidate &best) {
  const float base = amax / 6.0f * level.encode;
  Candidate four;
  try_scale(block, base, level, measure, best);
  try_scale(block, base * 1.5f, level, measure, four);
  if (!(four.error < best.error))
    return;
  std::memcpy(best.codes, four.codes, block.rows * sizeof four.codes[0]);
  best.byte = four.byte;
}

} // namespace steelyard::STEELYARD_ISA
