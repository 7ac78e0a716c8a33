// From codes and scales to the values of a panel. Included by kernel sources
// only.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "cpu/formats/bytes.h"
#include "cpu/gemm/gemm.h"

namespace steelyard::STEELYARD_ISA {

// Codes of a panel are FP8: E2M1 codes become the E5M2 codes of their values.
template <Element E>
using PanelFormat =
    std::conditional_t<E == Element::e4m3, steelyard::E4M3, steelyard::E5M2>;

static inline Bytes16 e5m2_of_e2m1(Bytes16 codes) {
  constexpr Bytes16 table = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                             0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
  return __builtin_shuffle(table, codes);
}

static inline Bytes16 load_bytes(const uint8_t *bytes) {
  Bytes16 loaded;
  std::memcpy(&loaded, bytes, sizeof loaded);
  return loaded;
}

#if defined(__F16C__)
// An E5M2 code is the high byte of a float16; shifted down by one, an E4M3 code
// is the high byte of value / 256, and NaN needs to be put back.
template <Element E> static inline __m256i halves_of(Bytes16 codes) {
  const __m256i high =
      _mm256_slli_epi16(_mm256_cvtepu8_epi16((__m128i)codes), 8);
  if constexpr (E != Element::e4m3)
    return high;
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1),
                                        _mm256_set1_epi16(0xbfff - 0x10000));
  const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
  return _mm256_or_si256(half,
                         _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
}

// What `decode_16` leaves to the factors.
template <Element E>
static constexpr float kDecodeFactor = E == Element::e4m3 ? 256.0f : 1.0f;

static inline __m256 factor_of(const float *factors, int half) {
  return _mm256_loadu_ps(factors + 8 * half);
}
static inline __m256 factor_of(float factor, int) {
  return _mm256_set1_ps(factor);
}

// out = codes * factor, 16 of them; one factor, or one each.
template <Element E, class Factor>
static inline void decode_16(Bytes16 codes, Factor factor, float *out) {
  const __m256i halves = halves_of<E>(codes);
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  _mm256_storeu_ps(out, _mm256_mul_ps(low, factor_of(factor, 0)));
  _mm256_storeu_ps(out + 8, _mm256_mul_ps(high, factor_of(factor, 1)));
}
#else
template <Element E> static constexpr float kDecodeFactor = 1.0f;

static inline float factor_of(const float *factors, int j) {
  return factors[j];
}
static inline float factor_of(float factor, int) { return factor; }

template <Element E, class Factor>
static inline void decode_16(Bytes16 codes, Factor factor, float *out) {
  for (int j = 0; j < 16; ++j)
    out[j] = decode<PanelFormat<E>>(codes[j]) * factor_of(factor, j);
}
#endif

static inline int64_t scale_index(const GemmOperand &x, int64_t i, int64_t p) {
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
