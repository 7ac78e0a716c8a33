// Scales from amaxes, branch-free. Every function is static: each instruction
// set has its own.
#pragma once

#include "cpu/formats/casts.h"

namespace steelyard {

enum class Rule : int { rceil, floor, ceil, even };

// `element_max / amax`, at most `limit`; `fallback` where the amax is 0, inf or
// NaN.
static inline float scale_from_amax(float amax, float element_max,
                                    float epsilon, bool power_of_two,
                                    float limit, float fallback = 1.0f) {
  const float bounded = amax < epsilon ? epsilon : amax;
  const float quotient = element_max / bounded;
  const float finite = quotient > kFloatMax ? limit : quotient;
  const uint32_t mask = power_of_two ? 0xff800000u : 0xffffffffu;
  const float scale = float_of(bits_of(finite) & mask);
  const bool usable = bounded > 0.0f && bounded <= kFloatMax;
  return usable ? scale : fallback;
}

// The E8M0 byte of a block from the bits of its amax.
template <class Format, Rule rule>
static inline int32_t e8m0_from_amax(int32_t amax) {
  constexpr int32_t infinity = static_cast<int32_t>(kInfinity);
  int32_t byte;
  if constexpr (rule == Rule::rceil) {
    constexpr float inverse = static_cast<float>(1.0 / Format::max);
    const int32_t value =
        static_cast<int32_t>(bits_of(float_of(amax) * inverse));
    const int32_t exponent = value >> 23, mantissa = value & 0x7fffff;
    const int32_t threshold = exponent == 0 ? 0x400000 : 0;
    const int32_t up = (mantissa > threshold) & (exponent != 254);
    byte = exponent + up;
  } else {
    const int32_t half = rule == Rule::even ? 1 << (22 - Format::mantissa) : 0;
    const int32_t ceiling = rule == Rule::ceil ? 0x7fffff : 0;
    byte = static_cast<int32_t>(static_cast<uint32_t>(amax) + half + ceiling) >>
           23;
    byte -= Format::emax;
  }
  byte = byte < 0 ? 0 : byte;
  byte = amax == infinity ? 254 : byte;
  return amax > infinity ? 255 : byte;
}

// What values are multiplied by before the cast: 2^(127 - byte).
static inline float e8m0_encode_factor(int32_t byte) {
  const uint32_t bits =
      byte >= 254 ? 0x00400000u : static_cast<uint32_t>(254 - byte) << 23;
  return float_of(byte == 255 ? 0x7fc00000u : bits);
}

// At most `limit`; NaN stays.
static inline float at_most(float value, float limit) {
  return value > limit ? limit : value;
}

// What values are multiplied by before the cast where the factor of decoded
// ones is given, or their divisor.
static inline float static_encode_factor(float given, bool is_divisor = false) {
  return at_most(is_divisor ? given : 1.0f / given, kFloatMax);
}

// The second level of NVFP4.
struct TwoLevel {
  float amax, encode, decode;
};

static inline TwoLevel nvfp4_tensor_scale(float amax, float range) {
  const float encode = scale_from_amax(amax, range, 0.0f, false, kFloatMax);
  return {amax, encode, 1.0f / encode};
}

static inline uint32_t nvfp4_block_scale(float block_amax, float encode_scale) {
  constexpr float sixth = static_cast<float>(1.0 / 6.0);
  return encode<E4M3>(at_most(block_amax * (encode_scale * sixth), kFloatMax));
}

static inline float nvfp4_encode_factor(uint32_t byte, float decode_scale) {
  return at_most(1.0f / (decode_e4m3(byte) * decode_scale), kFloatMax);
}

} // namespace steelyard
