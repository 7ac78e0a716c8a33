// The operations of simd.h by AVX2, FMA and F16C, and by AVX-512 and VNNI where
// the compiler may use them. portable.h says what each one computes.
#pragma once

#include <immintrin.h>

#include "cpu/simd/vectors.h"

namespace steelyard {

namespace STEELYARD_ISA {

static constexpr bool kHasVectors = true;

#if defined(__AVX512F__)
typedef float WidestFloats __attribute__((vector_size(64)));
typedef double WidestDoubles __attribute__((vector_size(64)));
typedef int32_t WidestWords __attribute__((vector_size(64)));
#else
typedef float WidestFloats __attribute__((vector_size(32)));
typedef double WidestDoubles __attribute__((vector_size(32)));
typedef int32_t WidestWords __attribute__((vector_size(32)));
#endif

static inline float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

static inline Floats8 multiply_add(Floats8 a, Floats8 b, Floats8 c) {
  return (Floats8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

#if defined(__AVX512F__)
static inline WidestFloats multiply_add(WidestFloats a, WidestFloats b,
                                        WidestFloats c) {
  return (WidestFloats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#endif

#if defined(__AVX512BF16__)
// The products of pairs of bfloat16 are added to each sum, that of the second
// one first. Numbers that are subnormal count as zero.
static inline WidestFloats add_bfloat_products(WidestFloats sum, WidestWords a,
                                               WidestWords b) {
  return (WidestFloats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif

static inline WidestWords load_pieces(const uint8_t *memory, int64_t stride) {
  const auto piece = [=](int i) {
    return _mm_loadu_si128(
        reinterpret_cast<const __m128i *>(memory + i * stride));
  };
#if defined(__AVX512F__)
  __m512i out = _mm512_castsi128_si512(piece(0));
  out = _mm512_inserti32x4(out, piece(1), 1);
  out = _mm512_inserti32x4(out, piece(2), 2);
  return (WidestWords)_mm512_inserti32x4(out, piece(3), 3);
#else
  return (WidestWords)_mm256_inserti128_si256(_mm256_castsi128_si256(piece(0)),
                                              piece(1), 1);
#endif
}

static inline SignedWords8 maximum(SignedWords8 a, SignedWords8 b) {
  return (SignedWords8)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

static inline SignedWords8 minimum(SignedWords8 a, SignedWords8 b) {
  return (SignedWords8)_mm256_min_epi32((__m256i)a, (__m256i)b);
}

static inline SignedHalves16 maximum(SignedHalves16 a, SignedHalves16 b) {
  return (SignedHalves16)_mm256_max_epi16((__m256i)a, (__m256i)b);
}

static inline Bytes32 maximum(Bytes32 a, Bytes32 b) {
  return (Bytes32)_mm256_max_epu8((__m256i)a, (__m256i)b);
}

template <class Vector> static inline bool is_zero(Vector x) {
  return _mm256_testz_si256((__m256i)x, (__m256i)x);
}

static inline Halves16 subtract_saturated(Halves16 a, Halves16 b) {
  return (Halves16)_mm256_subs_epu16((__m256i)a, (__m256i)b);
}

static inline Halves16 narrow_unsigned(SignedWords8 a, SignedWords8 b) {
  return (Halves16)_mm256_packus_epi32((__m256i)a, (__m256i)b);
}

static inline SignedHalves16 narrow_signed(SignedWords8 a, SignedWords8 b) {
  return (SignedHalves16)_mm256_packs_epi32((__m256i)a, (__m256i)b);
}

static inline Bytes32 narrow_unsigned(SignedHalves16 a, SignedHalves16 b) {
  return (Bytes32)_mm256_packus_epi16((__m256i)a, (__m256i)b);
}

static inline Bytes32 narrow_signed(SignedHalves16 a, SignedHalves16 b) {
  return (Bytes32)_mm256_packs_epi16((__m256i)a, (__m256i)b);
}

static inline SignedHalves16 multiply_high(SignedHalves16 a, SignedHalves16 b) {
  return (SignedHalves16)_mm256_mulhi_epi16((__m256i)a, (__m256i)b);
}

static inline SignedWords8 dot_pairs(SignedHalves16 a, SignedHalves16 b) {
  return (SignedWords8)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}

static inline SignedHalves16 dot_pairs(Bytes32 a, SignedBytes32 b) {
  return (SignedHalves16)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
}

static inline Longs4 multiply_low_words(Longs4 a, Longs4 b) {
  return (Longs4)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

static inline Words8 alternate_halves(Words8 low, Words8 high) {
  return (Words8)_mm256_blend_epi16((__m256i)low, (__m256i)high, 0xaa);
}

static inline Bytes16 look_up(Bytes16 table, Bytes16 indices) {
  return (Bytes16)_mm_shuffle_epi8((__m128i)table, (__m128i)indices);
}

static inline Bytes32 look_up(Bytes32 table, Bytes32 indices) {
  return (Bytes32)_mm256_shuffle_epi8((__m256i)table, (__m256i)indices);
}

static inline Halves16 widen(Bytes16 x) {
  return (Halves16)_mm256_cvtepu8_epi16((__m128i)x);
}

static inline Words8 widen(Halves8 x) {
  return (Words8)_mm256_cvtepu16_epi32((__m128i)x);
}

static inline SignedWords8 widen_signed_bytes(const uint8_t *bytes) {
  return (SignedWords8)_mm256_cvtepi8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i *>(bytes)));
}

static inline Floats8 float_of_f16(Halves8 x) {
  return (Floats8)_mm256_cvtph_ps((__m128i)x);
}

static inline Floats4 sums_of_4(const Floats8 (&x)[4]) {
  const __m256 pairs =
      _mm256_hadd_ps(_mm256_hadd_ps((__m256)x[0], (__m256)x[1]),
                     _mm256_hadd_ps((__m256)x[2], (__m256)x[3]));
  return (Floats4)_mm_add_ps(_mm256_castps256_ps128(pairs),
                             _mm256_extractf128_ps(pairs, 1));
}

static inline Floats8 sums_of_pairs(Floats8 a, Floats8 b) {
  return (Floats8)_mm256_hadd_ps((__m256)a, (__m256)b);
}

#if defined(__AVX512VNNI__)
typedef SignedWords8 ByteProducts;

static inline ByteProducts add_products(ByteProducts sum, Bytes32 a,
                                        SignedBytes32 b) {
  return (ByteProducts)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)a,
                                           (__m256i)b);
}

static inline SignedWords8 total_of(ByteProducts products) { return products; }
#else
typedef Halves16 ByteProducts;

static inline ByteProducts add_products(ByteProducts sum, Bytes32 a,
                                        SignedBytes32 b) {
  return sum + (Halves16)dot_pairs(a, b);
}

static inline SignedWords8 total_of(ByteProducts products) {
  const Halves16 ones = broadcast(uint16_t{1});
  return dot_pairs((SignedHalves16)products, (SignedHalves16)ones);
}
#endif

static inline void store_streamed(uint8_t *memory, Bytes32 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i *>(memory), (__m256i)x);
}

static inline void store_streamed(uint8_t *memory, Bytes16 x) {
  _mm_stream_si128(reinterpret_cast<__m128i *>(memory), (__m128i)x);
}

static inline void end_streams() { _mm_sfence(); }

} // namespace STEELYARD_ISA
} // namespace steelyard
