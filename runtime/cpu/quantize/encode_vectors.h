// `encode` of casts.h on 32 values at once. Included by kernel sources only.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// Magnitude codes times 2^(7 - mantissa), still offset by the exponent of the
// smallest binade, and the largest magnitude seen.
template <class Format, Range range>
static inline SignedWords8 encode_magnitude(Floats8 value,
                                            SignedWords8 &largest) {
  constexpr int32_t lowest = (127 + Format::min_exponent) << 23;
  constexpr int32_t mask = static_cast<int32_t>(kAbsMask),
                    infinity = static_cast<int32_t>(kInfinity);
  SignedWords8 magnitude = as<SignedWords8>(value) & mask;
  if constexpr (range == Range::any)
    largest = maximum(largest, magnitude);
  if constexpr (range != Range::bounded)
    magnitude =
        minimum(magnitude, as<SignedWords8>(broadcast(float{Format::max})));
  const SignedWords8 binade = maximum(magnitude & infinity, broadcast(lowest));
  // The sum is rounded in its low bits, which then count steps.
  const Floats8 rounded =
      multiply_add(as<Floats8>(binade),
                   broadcast(static_cast<float>(1 << (23 - Format::mantissa))),
                   as<Floats8>(magnitude));
  const Words8 steps_and_binade =
      alternate_halves(as<Words8>(rounded), as<Words8>(binade));
  const SignedWords8 weights = broadcast(1 << 16 | 1 << (7 - Format::mantissa));
  return dot_pairs(as<SignedHalves16>(steps_and_binade),
                   as<SignedHalves16>(weights));
}

template <class Format>
[[gnu::noinline, gnu::cold]] static void
encode_32_with_nan(const Floats8 (&values)[4], uint8_t *codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = static_cast<uint8_t>(encode<Format>(values[i / 8][i % 8]));
}

// The codes of 32 values, one per byte; the rare NaN takes the scalar way.
template <class Format, Range range>
static inline Bytes32 encode_32(const Floats8 (&values)[4]) {
  constexpr int lowest = (127 + Format::min_exponent) << 23;
  constexpr int32_t infinity = static_cast<int32_t>(kInfinity);
  SignedWords8 codes[4], largest{};
  for (int i = 0; i < 4; ++i)
    codes[i] = encode_magnitude<Format, range>(values[i], largest);
  if (range == Range::any &&
      __builtin_expect(!is_zero(largest > broadcast(infinity)), 0)) {
    alignas(32) uint8_t bytes[32];
    encode_32_with_nan<Format>(values, bytes);
    return load<Bytes32>(bytes);
  }
  const Halves16 offset = broadcast(static_cast<uint16_t>(lowest >> 16));
  const Halves16 low =
      (narrow_unsigned(codes[0], codes[1]) - offset) >> (7 - Format::mantissa);
  const Halves16 high =
      (narrow_unsigned(codes[2], codes[3]) - offset) >> (7 - Format::mantissa);
  // Signed saturation keeps each sign in the top bit of its byte.
  const Bytes32 signs = narrow_signed(
      narrow_signed(as<SignedWords8>(values[0]), as<SignedWords8>(values[1])),
      narrow_signed(as<SignedWords8>(values[2]), as<SignedWords8>(values[3])));
  constexpr int down = Format::sign_shift - 24;
  const Bytes32 placed = as<Bytes32>(as<Halves16>(signs) >> down) &
                         static_cast<uint8_t>(0x80 >> down);
  return in_order_of_4(
      narrow_unsigned(as<SignedHalves16>(low), as<SignedHalves16>(high)) |
      placed);
}

static inline Floats8 load_8(const float *x) { return load<Floats8>(x); }
static inline Floats8 load_8(const uint16_t *bf16) {
  return as<Floats8>(widen(load<Halves8>(bf16)) << 16);
}

// The largest magnitudes of some values, as float bits in 8 lanes.
template <int Count> static inline SignedWords8 largest_8(const float *x) {
  SignedWords8 largest{};
  for (int j = 0; j < Count; j += 8)
    largest = maximum(largest, load<SignedWords8>(x + j) &
                                   static_cast<int32_t>(kAbsMask));
  return largest;
}

template <int Count>
static inline SignedWords8 largest_8(const uint16_t *bf16) {
  SignedHalves16 largest{};
  for (int j = 0; j < Count; j += 16)
    largest =
        maximum(largest, load<SignedHalves16>(bf16 + j) & int16_t{0x7fff});
  // The odd halves stay where a float has its upper bits.
  const Words8 even = as<Words8>(largest) << 16;
  return as<SignedWords8>(maximum(largest, as<SignedHalves16>(even))) &
         0x7fff0000;
}

// Bits of the amax of each of 8 blocks of `Block` values. Each step of the tree
// leaves half the vectors, twice as many blocks in each.
template <int Block, class Element>
static inline SignedWords8 amax_8_blocks(const Element *x) {
  const auto larger = [](auto a, auto b) {
    return as<Words8>(maximum(as<SignedWords8>(a), as<SignedWords8>(b)));
  };
  Words8 largest[8], pairs[4], quads[2];
  for (int b = 0; b < 8; ++b)
    largest[b] = as<Words8>(largest_8<Block>(x + b * Block));
  for (int i = 0; i < 4; ++i)
    pairs[i] = larger(zip_low(largest[2 * i], largest[2 * i + 1]),
                      zip_high(largest[2 * i], largest[2 * i + 1]));
  for (int i = 0; i < 2; ++i) {
    const Longs4 a = as<Longs4>(pairs[2 * i]), b = as<Longs4>(pairs[2 * i + 1]);
    quads[i] = larger(zip_low(a, b), zip_high(a, b));
  }
  return as<SignedWords8>(
      larger(join_low(quads[0], quads[1]), join_high(quads[0], quads[1])));
}

// Bits of the amax of each of 32 columns, in registers.
static inline void amax_32_columns(const float *x, int64_t stride, int64_t rows,
                                   int32_t *amax) {
  SignedWords8 largest[4] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int v = 0; v < 4; ++v)
      largest[v] =
          maximum(largest[v], load<SignedWords8>(x + i * stride + 8 * v) &
                                  static_cast<int32_t>(kAbsMask));
  for (int v = 0; v < 4; ++v)
    store(amax + 8 * v, largest[v]);
}

static inline void amax_32_columns(const uint16_t *bf16, int64_t stride,
                                   int64_t rows, int32_t *amax) {
  SignedHalves16 largest[2] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int v = 0; v < 2; ++v)
      largest[v] =
          maximum(largest[v], load<SignedHalves16>(bf16 + i * stride + 16 * v) &
                                  int16_t{0x7fff});
  alignas(32) uint16_t halves[32];
  for (int v = 0; v < 2; ++v)
    store(halves + 16 * v, largest[v]);
  for (int v = 0; v < 4; ++v)
    store(amax + 8 * v, load_8(halves + 8 * v));
}

template <class Element>
static inline void multiply_32(const Element *x, Floats8 low, Floats8 high,
                               Floats8 (&values)[4]) {
  values[0] = load_8(x) * low;
  values[1] = load_8(x + 8) * low;
  values[2] = load_8(x + 16) * high;
  values[3] = load_8(x + 24) * high;
}

// Encodes 32 values of bf16 that a power of two brings into range, in 16-bit
// integers: false if one of them becomes subnormal, which these cannot round.
template <class Format>
static inline bool encode_narrow(const uint16_t *bf16, Halves16 low_shift,
                                 Halves16 high_shift, Bytes32 &codes) {
  constexpr int drop = 7 - Format::mantissa;
  constexpr uint16_t smallest = 0x7f, one = 1;
  const Halves16 shifts[2] = {low_shift, high_shift};
  Halves16 bits[2], rounded[2], below{};
  for (int v = 0; v < 2; ++v) {
    bits[v] = load<Halves16>(bf16 + 16 * v);
    const Halves16 magnitude = bits[v] & uint16_t{0x7fff};
    // Less one, zero is the largest and passes.
    below |= subtract_saturated(shifts[v] + smallest, magnitude - one);
    const Halves16 moved = subtract_saturated(magnitude, shifts[v]);
    const Halves16 odd = moved >> drop & one;
    constexpr uint16_t half = (1 << (drop - 1)) - 1;
    rounded[v] = (moved + half + odd) >> drop;
  }
  // Signed saturation keeps each sign in the top bit of its byte.
  const Bytes32 signs =
      narrow_signed(as<SignedHalves16>(bits[0]), as<SignedHalves16>(bits[1])) &
      uint8_t{0x80};
  codes = in_order_of_2(narrow_unsigned(as<SignedHalves16>(rounded[0]),
                                        as<SignedHalves16>(rounded[1])) |
                        signs);
  return is_zero(below);
}

// The codes of 32 values, one scale each.
template <class Format, Range range, class Element>
static inline Bytes32 encode_32_by(const Element *x, const float *scales) {
  Floats8 values[4];
  for (int i = 0; i < 4; ++i)
    values[i] = load_8(x + 8 * i) * load<Floats8>(scales + 8 * i);
  return encode_32<Format, range>(values);
}

// Encodes values times a scale.
template <class Format, Range range> class Encoder {
public:
  explicit Encoder(float scale)
      : scale_(broadcast(scale)), shift_(narrow_shift<Format>(scale)) {}

  Bytes32 encode_32(const float *x) const {
    Floats8 values[4];
    multiply_32(x, scale_, scale_, values);
    return STEELYARD_ISA::encode_32<Format, range>(values);
  }

  Bytes32 encode_32(const uint16_t *bf16) const {
    if constexpr (range == Range::bounded)
      if (shift_ >= 0) {
        const Halves16 shift = broadcast(static_cast<uint16_t>(shift_));
        Bytes32 codes;
        if (__builtin_expect(encode_narrow<Format>(bf16, shift, shift, codes),
                             1))
          return codes;
      }
    Floats8 values[4];
    multiply_32(bf16, scale_, scale_, values);
    return STEELYARD_ISA::encode_32<Format, range>(values);
  }

private:
  const Floats8 scale_;
  const int shift_;
};

} // namespace steelyard::STEELYARD_ISA
