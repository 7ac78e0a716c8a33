// `encode` of casts.h on 32 values at once. Included by kernel sources only.
#pragma once

#if defined(__AVX2__)

#include <immintrin.h>

#include "cpu/formats/casts.h"

namespace steelyard::STEELYARD_ISA {

// Magnitude codes times 2^(7 - mantissa), still offset by the exponent of the
// smallest binade, and the largest magnitude seen.
template <class Format, Range range>
static inline __m256i encode_magnitude(__m256 value, __m256i &largest) {
  constexpr int lowest = (127 + Format::min_exponent) << 23;
  __m256i magnitude =
      _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(kAbsMask));
  if constexpr (range == Range::any)
    largest = _mm256_max_epi32(largest, magnitude);
  if constexpr (range != Range::bounded)
    magnitude = _mm256_min_epi32(
        magnitude, _mm256_castps_si256(_mm256_set1_ps(Format::max)));
  const __m256i exponent =
      _mm256_and_si256(magnitude, _mm256_set1_epi32(kInfinity));
  const __m256i binade = _mm256_max_epi32(exponent, _mm256_set1_epi32(lowest));
  // The sum is rounded in its low bits, which then count steps.
  const __m256 rounded = _mm256_fmadd_ps(
      _mm256_castsi256_ps(binade),
      _mm256_set1_ps(static_cast<float>(1 << (23 - Format::mantissa))),
      _mm256_castsi256_ps(magnitude));
  const __m256i steps_and_binade =
      _mm256_blend_epi16(_mm256_castps_si256(rounded), binade, 0xaa);
  return _mm256_madd_epi16(
      steps_and_binade,
      _mm256_set1_epi32(1 << 16 | 1 << (7 - Format::mantissa)));
}

// Bytes of four vectors of 32-bit lanes that packing left interleaved.
static inline __m256i in_order(__m256i packed) {
  return _mm256_permutevar8x32_epi32(packed,
                                     _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

template <class Format>
[[gnu::noinline, gnu::cold]] static __m256i
encode_32_with_nan(const __m256 (&values)[4]) {
  alignas(32) float floats[32];
  alignas(32) uint8_t bytes[32];
  for (int i = 0; i < 4; ++i)
    _mm256_store_ps(floats + 8 * i, values[i]);
  for (int i = 0; i < 32; ++i)
    bytes[i] = static_cast<uint8_t>(encode<Format>(floats[i]));
  return _mm256_load_si256(reinterpret_cast<const __m256i *>(bytes));
}

// The codes of 32 values, one a byte; the rare NaN takes the scalar way.
template <class Format, Range range>
static inline __m256i encode_32(const __m256 (&values)[4]) {
  constexpr int lowest = (127 + Format::min_exponent) << 23;
  __m256i codes[4], largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i)
    codes[i] = encode_magnitude<Format, range>(values[i], largest);
  const __m256i above =
      _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(kInfinity));
  if (range == Range::any &&
      __builtin_expect(!_mm256_testz_si256(above, above), 0))
    return encode_32_with_nan<Format>(values);
  const __m256i offset = _mm256_set1_epi16(lowest >> 16);
  const __m256i low = _mm256_srli_epi16(
      _mm256_sub_epi16(_mm256_packus_epi32(codes[0], codes[1]), offset),
      7 - Format::mantissa);
  const __m256i high = _mm256_srli_epi16(
      _mm256_sub_epi16(_mm256_packus_epi32(codes[2], codes[3]), offset),
      7 - Format::mantissa);
  // Signed saturation keeps each sign in the top bit of its byte.
  const __m256i signs =
      _mm256_packs_epi16(_mm256_packs_epi32(_mm256_castps_si256(values[0]),
                                            _mm256_castps_si256(values[1])),
                         _mm256_packs_epi32(_mm256_castps_si256(values[2]),
                                            _mm256_castps_si256(values[3])));
  constexpr int down = Format::sign_shift - 24;
  const __m256i placed =
      _mm256_and_si256(_mm256_srli_epi16(signs, down),
                       _mm256_set1_epi8(static_cast<char>(0x80 >> down)));
  return in_order(_mm256_or_si256(_mm256_packus_epi16(low, high), placed));
}

static inline __m256 load_8(const float *x) { return _mm256_loadu_ps(x); }
static inline __m256 load_8(const uint16_t *bf16) {
  const __m128i halves =
      _mm_loadu_si128(reinterpret_cast<const __m128i *>(bf16));
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// The largest magnitudes of some values, as float bits in 8 lanes.
template <int Count> static inline __m256i largest_8(const float *x) {
  const __m256i mask = _mm256_set1_epi32(kAbsMask);
  __m256i largest = _mm256_setzero_si256();
  for (int j = 0; j < Count; j += 8)
    largest = _mm256_max_epi32(
        largest, _mm256_and_si256(_mm256_castps_si256(load_8(x + j)), mask));
  return largest;
}

template <int Count> static inline __m256i largest_8(const uint16_t *bf16) {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  __m256i largest = _mm256_setzero_si256();
  for (int j = 0; j < Count; j += 16)
    largest = _mm256_max_epi16(
        largest,
        _mm256_and_si256(
            _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bf16 + j)),
            mask));
  // The odd halves stay where a float has its upper bits.
  largest = _mm256_max_epi16(largest, _mm256_slli_epi32(largest, 16));
  return _mm256_and_si256(largest, _mm256_set1_epi32(0x7fff0000));
}

// Bits of the amax of each of 8 blocks of `Block` values. Each step of the tree
// leaves half the vectors, twice as many blocks in each.
template <int Block, class Element>
static inline __m256i amax_8_blocks(const Element *x) {
  __m256i largest[8];
  for (int b = 0; b < 8; ++b)
    largest[b] = largest_8<Block>(x + b * Block);
  __m256i pairs[4], quads[2];
  for (int i = 0; i < 4; ++i)
    pairs[i] = _mm256_max_epi32(
        _mm256_unpacklo_epi32(largest[2 * i], largest[2 * i + 1]),
        _mm256_unpackhi_epi32(largest[2 * i], largest[2 * i + 1]));
  for (int i = 0; i < 2; ++i)
    quads[i] =
        _mm256_max_epi32(_mm256_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                         _mm256_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  return _mm256_max_epi32(_mm256_permute2x128_si256(quads[0], quads[1], 0x20),
                          _mm256_permute2x128_si256(quads[0], quads[1], 0x31));
}

// Bits of the amax of each of 32 columns, in registers.
static inline void amax_32_columns(const float *x, int64_t stride, int64_t rows,
                                   int32_t *amax) {
  const __m256i mask = _mm256_set1_epi32(kAbsMask);
  __m256i largest[4] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int v = 0; v < 4; ++v) {
      const __m256i bits = _mm256_loadu_si256(
          reinterpret_cast<const __m256i *>(x + i * stride + 8 * v));
      largest[v] = _mm256_max_epi32(largest[v], _mm256_and_si256(bits, mask));
    }
  for (int v = 0; v < 4; ++v)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(amax + 8 * v), largest[v]);
}

static inline void amax_32_columns(const uint16_t *bf16, int64_t stride,
                                   int64_t rows, int32_t *amax) {
  const __m256i mask = _mm256_set1_epi16(0x7fff);
  __m256i largest[2] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int v = 0; v < 2; ++v) {
      const __m256i bits = _mm256_loadu_si256(
          reinterpret_cast<const __m256i *>(bf16 + i * stride + 16 * v));
      largest[v] = _mm256_max_epi16(largest[v], _mm256_and_si256(bits, mask));
    }
  alignas(32) uint16_t halves[32];
  for (int v = 0; v < 2; ++v)
    _mm256_store_si256(reinterpret_cast<__m256i *>(halves + 16 * v),
                       largest[v]);
  for (int v = 0; v < 4; ++v)
    _mm256_storeu_ps(reinterpret_cast<float *>(amax + 8 * v),
                     load_8(halves + 8 * v));
}

template <class Element>
static inline void multiply_32(const Element *x, __m256 low, __m256 high,
                               __m256 (&values)[4]) {
  values[0] = _mm256_mul_ps(load_8(x), low);
  values[1] = _mm256_mul_ps(load_8(x + 8), low);
  values[2] = _mm256_mul_ps(load_8(x + 16), high);
  values[3] = _mm256_mul_ps(load_8(x + 24), high);
}

// Encodes 32 values of bf16 that a power of two brings into range, in 16-bit
// integers: false if one of them becomes subnormal, which these cannot round.
template <class Format>
static inline bool encode_narrow(const uint16_t *bf16, __m256i low_shift,
                                 __m256i high_shift, __m256i &codes) {
  constexpr int drop = 7 - Format::mantissa;
  const __m256i one = _mm256_set1_epi16(1), smallest = _mm256_set1_epi16(0x7f);
  const __m256i shifts[2] = {low_shift, high_shift};
  __m256i bits[2], rounded[2], below = _mm256_setzero_si256();
  for (int v = 0; v < 2; ++v) {
    bits[v] =
        _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bf16 + 16 * v));
    const __m256i magnitude =
        _mm256_and_si256(bits[v], _mm256_set1_epi16(0x7fff));
    // Less one, zero is the largest and passes.
    below = _mm256_or_si256(
        below, _mm256_subs_epu16(_mm256_add_epi16(shifts[v], smallest),
                                 _mm256_sub_epi16(magnitude, one)));
    const __m256i moved = _mm256_subs_epu16(magnitude, shifts[v]);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(moved, drop), one);
    rounded[v] = _mm256_srli_epi16(
        _mm256_add_epi16(
            _mm256_add_epi16(moved, _mm256_set1_epi16((1 << (drop - 1)) - 1)),
            odd),
        drop);
  }
  // Signed saturation keeps each sign in the top bit of its byte.
  const __m256i signs =
      _mm256_and_si256(_mm256_packs_epi16(bits[0], bits[1]),
                       _mm256_set1_epi8(static_cast<char>(0x80)));
  codes = _mm256_permute4x64_epi64(
      _mm256_or_si256(_mm256_packus_epi16(rounded[0], rounded[1]), signs),
      0xd8);
  return _mm256_testz_si256(below, below);
}

static inline __m256i load_shifts(const uint16_t *shifts) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(shifts));
}

// The codes of 32 values, one scale each.
template <class Format, Range range, class Element>
static inline __m256i encode_32_by(const Element *x, const float *scales) {
  __m256 values[4];
  for (int i = 0; i < 4; ++i)
    values[i] =
        _mm256_mul_ps(load_8(x + 8 * i), _mm256_loadu_ps(scales + 8 * i));
  return encode_32<Format, range>(values);
}

// Encodes values times a scale.
template <class Format, Range range> class Encoder {
public:
  explicit Encoder(float scale)
      : scale_(_mm256_set1_ps(scale)), shift_(narrow_shift<Format>(scale)) {}

  __m256i encode_32(const float *x) const {
    __m256 values[4];
    multiply_32(x, scale_, scale_, values);
    return STEELYARD_ISA::encode_32<Format, range>(values);
  }

  __m256i encode_32(const uint16_t *bf16) const {
    if constexpr (range == Range::bounded)
      if (shift_ >= 0) {
        const __m256i shift = _mm256_set1_epi16(static_cast<short>(shift_));
        __m256i codes;
        if (__builtin_expect(encode_narrow<Format>(bf16, shift, shift, codes),
                             1))
          return codes;
      }
    __m256 values[4];
    multiply_32(bf16, scale_, scale_, values);
    return STEELYARD_ISA::encode_32<Format, range>(values);
  }

private:
  const __m256 scale_;
  const int shift_;
};

} // namespace steelyard::STEELYARD_ISA

#endif
