// Casts between float32 and the small formats, branch-free so that loops over
// them vectorize. Every function is static: each instruction set has its own.
#pragma once

#include <cstdint>
#include <cstring>

namespace steelyard {

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static constexpr uint32_t kAbsMask = 0x7fffffff;
static constexpr uint32_t kInfinity = 0x7f800000;
static constexpr float kFloatMax = 3.402823466e+38f;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// A format of sign, exponent and `mantissa` bits whose smallest normal value is
// 2^`min_exponent`.
template <int Mantissa, int MinExponent, int Sign, uint8_t Nan>
struct Minifloat {
  static constexpr int mantissa = Mantissa;
  static constexpr int min_exponent = MinExponent;
  static constexpr int sign_shift = Sign;
  static constexpr uint8_t nan = Nan;
};

struct E4M3 : Minifloat<3, -6, 24, 0x7f> {
  static constexpr float max = 448.0f;
  static constexpr int emax = 8;
};
struct E5M2 : Minifloat<2, -14, 24, 0x7f> {
  static constexpr float max = 57344.0f;
  static constexpr int emax = 15;
};
struct E2M1 : Minifloat<1, 0, 28, 0x07> {
  static constexpr float max = 6.0f;
  static constexpr int emax = 2;
};

// What is known of values before they are encoded: nothing, that none is NaN,
// or also that none rounds to more than the format's largest.
enum class Range { any, numbers, bounded };

// Nearest, ties to even, saturating. Adding 2^(exponent + 23 - mantissa) rounds
// the value to `mantissa` bits in the adder; what is left in the low bits is
// the code, subnormals included.
template <class Format> static inline uint32_t encode(float value) {
  constexpr int32_t lowest = (127 + Format::min_exponent) << 23;
  const uint32_t bits = bits_of(value);
  const int32_t magnitude = static_cast<int32_t>(bits & kAbsMask);
  const int32_t limit = static_cast<int32_t>(bits_of(Format::max));
  const int32_t clamped = magnitude < limit ? magnitude : limit;
  const int32_t exponent = clamped & static_cast<int32_t>(kInfinity);
  const int32_t binade = exponent > lowest ? exponent : lowest;
  const int32_t anchor = binade + ((23 - Format::mantissa) << 23);
  const float rounded = float_of(clamped) + float_of(anchor);
  const int32_t steps = static_cast<int32_t>(bits_of(rounded)) - anchor;
  const int32_t code = steps + ((binade - lowest) >> (23 - Format::mantissa));
  const int32_t sign =
      (bits >> Format::sign_shift) & (0x80000000u >> Format::sign_shift);
  return magnitude > static_cast<int32_t>(kInfinity) ? Format::nan
                                                     : code | sign;
}

// What to take from the bits of a bf16 value so that its exponent becomes that
// of the format, times the scale, which must be a power of two; negative where
// 16 bits do not suffice.
template <class Format> static inline int narrow_shift(float scale) {
  const uint32_t bits = bits_of(scale);
  const int exponent =
      126 + Format::min_exponent + 127 - static_cast<int>(bits >> 23);
  return (bits & 0x7fffff) == 0 && exponent < 255 ? exponent * 128 : -1;
}

// The value of a code, exact.
static inline float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float value = float_of(magnitude << 20) * 0x1p120f;
  const uint32_t bits = magnitude == 0x7f ? 0x7fc00000u : bits_of(value);
  return float_of(bits | (code & 0x80) << 24);
}

static inline float decode_e5m2(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float value = float_of(magnitude << 21) * 0x1p112f;
  const uint32_t special = kInfinity | (magnitude & 3 ? 0x400000u : 0u);
  const uint32_t bits = magnitude >= 0x7c ? special : bits_of(value);
  return float_of(bits | (code & 0x80) << 24);
}

static inline float decode_e2m1(uint32_t code) {
  const float value = float_of((code & 7) << 22) * 0x1p126f;
  return float_of(bits_of(value) | (code & 8) << 28);
}

static inline float decode_e8m0(uint32_t code) {
  const uint32_t normal = code == 0 ? 0x00400000u : code << 23;
  return float_of(code == 255 ? 0x7fc00000u : normal);
}

template <class Format> static inline float decode(uint32_t code) {
  if constexpr (Format::mantissa == 3)
    return decode_e4m3(code);
  else if constexpr (Format::mantissa == 2)
    return decode_e5m2(code);
  else
    return decode_e2m1(code);
}

static inline float from_bf16(uint16_t value) {
  return float_of(static_cast<uint32_t>(value) << 16);
}

// Rounded to bf16, kept as float32.
static inline float round_to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  return float_of((bits & kAbsMask) > kInfinity ? 0x7fc00000u : rounded);
}

static inline uint16_t to_bf16(float value) {
  return static_cast<uint16_t>(bits_of(round_to_bf16(value)) >> 16);
}

static inline float from_f16(uint16_t value) {
  const uint32_t magnitude = (value & 0x7fffu) << 13;
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t bits =
      magnitude >= 0x0f800000 ? magnitude | kInfinity : finite;
  return float_of(bits | (value & 0x8000u) << 16);
}

// The adder rounds as in `encode`; f16 has no saturation, so overflow is
// infinity.
static inline uint16_t to_f16(float value) {
  constexpr int32_t lowest = (127 - 14) << 23;
  const uint32_t bits = bits_of(value);
  const int32_t magnitude = static_cast<int32_t>(bits & kAbsMask);
  const int32_t limit = static_cast<int32_t>(bits_of(65536.0f));
  const int32_t clamped = magnitude < limit ? magnitude : limit;
  const int32_t exponent = clamped & static_cast<int32_t>(kInfinity);
  const int32_t binade = exponent > lowest ? exponent : lowest;
  const int32_t anchor = binade + (13 << 23);
  const float rounded = float_of(clamped) + float_of(anchor);
  const int32_t steps = static_cast<int32_t>(bits_of(rounded)) - anchor;
  const int32_t code = steps + ((binade - lowest) >> 13);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t finite_or_nan =
      magnitude > static_cast<int32_t>(kInfinity) ? 0x7e00 : code;
  return finite_or_nan | sign;
}

} // namespace steelyard
