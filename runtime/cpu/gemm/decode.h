// From codes and scales to the values of a panel. Included by kernel sources
// only.
#pragma once

#include <type_traits>

#include "cpu/formats/bytes.h"
#include "cpu/gemm/gemm.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// Codes of a panel are FP8: E2M1 codes become the E5M2 codes of their values.
template <Element E>
using PanelFormat =
    std::conditional_t<E == Element::e4m3, steelyard::E4M3, steelyard::E5M2>;

static inline Bytes16 e5m2_of_e2m1(Bytes16 codes) {
  if constexpr (kHasVectors) {
    constexpr Bytes16 table = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                               0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    return look_up(table, codes);
  }
  // The same by arithmetic: from 1 (code 2, 0x3c) on, each code adds 2 to the
  // bits; 0.5 (code 1, 0x38) and 0 are apart.
  const Bytes16 magnitude = codes & uint8_t{7};
  const Bytes16 half = (Bytes16)(magnitude == uint8_t{1});
  const Bytes16 zero = (Bytes16)(magnitude == uint8_t{0});
  const Bytes16 bits = magnitude + magnitude + uint8_t{0x38} + half + half;
  return (bits & ~zero) | (codes & uint8_t{8}) << 4;
}

// An E5M2 code is the high byte of a float16; shifted down by one, an E4M3 code
// is the high byte of value / 256, and NaN needs to be put back.
template <Element E> static inline Halves16 halves_of(Bytes16 codes) {
  const Halves16 high = widen(codes) << 8;
  if constexpr (E != Element::e4m3)
    return high;
  const Halves16 half =
      as<Halves16>(as<SignedHalves16>(high) >> 1) & uint16_t{0xbfff};
  const Halves16 nan =
      as<Halves16>((half & uint16_t{0x7fff}) == broadcast(uint16_t{0x3f80}));
  return half | (nan & uint16_t{0x7e00});
}

// What `decode_16` leaves to the factors.
template <Element E>
static constexpr float kDecodeFactor =
    kHasVectors && E == Element::e4m3 ? 256.0f : 1.0f;

static inline Floats8 factors_of(const float *factors, int half) {
  return load<Floats8>(factors + 8 * half);
}
static inline Floats8 factors_of(float factor, int) {
  return broadcast(factor);
}
static inline float factor_of(const float *factors, int j) {
  return factors[j];
}
static inline float factor_of(float factor, int) { return factor; }

// out = codes * factor, 16 of them; one factor, or one each.
template <Element E, class Factor>
static inline void decode_16(Bytes16 codes, Factor factor, float *out) {
  if constexpr (kHasVectors) {
    const Bytes32 halves = as<Bytes32>(halves_of<E>(codes));
    const Floats8 low = float_of_f16(as<Halves8>(low_half(halves)));
    const Floats8 high = float_of_f16(as<Halves8>(high_half(halves)));
    store(out, low * factors_of(factor, 0));
    store(out + 8, high * factors_of(factor, 1));
    return;
  }
  for (int j = 0; j < 16; ++j)
    out[j] = decode<PanelFormat<E>>(codes[j]) * factor_of(factor, j);
}

static inline int64_t outer_block(const GemmOperand &x) {
  return int64_t{1} << x.outer_shift;
}

static inline int64_t k_block(const GemmOperand &x) {
  return int64_t{1} << x.k_shift;
}

// The byte of a packed weight that holds its code (i, p).
static inline int64_t packed_code(const GemmOperand &x, int64_t i, int64_t p) {
  const int64_t units = (x.k + kUnitBlock - 1) / kUnitBlock;
  const int64_t unit = i / kGroupColumns * units + p / kUnitBlock;
  const int64_t quad = p % kUnitBlock / 8 * kGroupColumns + i % kGroupColumns;
  return unit * kUnitBytes + quad * 4 + p % 8 / 2;
}

static inline int64_t scale_index(const GemmOperand &x, int64_t i, int64_t p) {
  if (x.is_packed_weight) {
    const int64_t blocks = (x.k + k_block(x) - 1) >> x.k_shift;
    return (i / kGroupColumns * blocks + (p >> x.k_shift)) * kGroupColumns +
           i % kGroupColumns;
  }
  return (i >> x.outer_shift) * x.outer_stride + (p >> x.k_shift) * x.k_stride;
}

static inline float scale_at(const GemmOperand &x, int64_t index) {
  if (x.scale_type == ScaleType::none)
    return 1.0f;
  if (x.scale_type == ScaleType::f32)
    return static_cast<const float *>(x.scales)[index];
  const uint8_t byte = static_cast<const uint8_t *>(x.scales)[index];
  return x.scale_type == ScaleType::e8m0 ? decode_e8m0(byte)
                                         : decode_e4m3(byte);
}

// A scale as panels hold it. One that is finite stays so: where the clamp acts,
// the codes of its block are all zero.
static inline float panel_scale(float scale, double unit) {
  const double scaled = static_cast<double>(scale) * unit;
  return scaled > 0x1p112 && scale <= kFloatMax ? 0x1p112f
                                                : static_cast<float>(scaled);
}

static inline float code_at(const GemmOperand &x, int64_t i, int64_t p) {
  if (x.is_packed_weight) {
    const uint8_t pair = x.codes[packed_code(x, i, p)];
    return decode_e2m1(p % 2 ? pair >> 4 : pair & 15);
  }
  const int64_t row = x.k_major ? p : i, column = x.k_major ? i : p;
  const uint8_t *codes = x.codes + row * x.codes_stride;
  if (x.element == Element::e4m3)
    return decode_e4m3(codes[column]);
  if (x.element == Element::e5m2)
    return decode_e5m2(codes[column]);
  return decode_e2m1(column % 2 ? codes[column / 2] >> 4
                                : codes[column / 2] & 15);
}

} // namespace steelyard::STEELYARD_ISA
