// Largest magnitudes of rows that are read side by side. Included by kernel
// sources only.
#pragma once

#if defined(__AVX2__)

#include <immintrin.h>

#include <cstdint>

namespace steelyard::STEELYARD_ISA {

template <class Integer> static inline __m256i max_of(__m256i a, __m256i b) {
  if constexpr (sizeof(Integer) == 4)
    return _mm256_max_epi32(a, b);
  else
    return _mm256_max_epi16(a, b);
}

// The largest of the integers in a vector, none of them negative.
template <class Integer> static inline Integer largest_lane(__m256i lanes) {
  alignas(32) Integer values[32 / sizeof(Integer)];
  _mm256_store_si256(reinterpret_cast<__m256i *>(values), lanes);
  Integer largest = 0;
  for (const Integer value : values)
    largest = value > largest ? value : largest;
  return largest;
}

// Bits of the largest magnitude of four rows, whose length is a multiple of 64.
template <class Integer, class Element>
static inline Integer amax_of_4_rows(const Element *x, int64_t stride,
                                     int64_t n) {
  constexpr int64_t lanes = 32 / sizeof(Element);
  const __m256i mask = sizeof(Integer) == 4 ? _mm256_set1_epi32(0x7fffffff)
                                            : _mm256_set1_epi16(0x7fff);
  __m256i largest[4] = {};
  for (int64_t j = 0; j < n; j += 4 * lanes)
    for (int i = 0; i < 4; ++i)
      for (int v = 0; v < 4; ++v) {
        const __m256i bits = _mm256_loadu_si256(
            reinterpret_cast<const __m256i *>(x + i * stride + j + v * lanes));
        largest[v] = max_of<Integer>(largest[v], _mm256_and_si256(bits, mask));
      }
  return largest_lane<Integer>(
      max_of<Integer>(max_of<Integer>(largest[0], largest[1]),
                      max_of<Integer>(largest[2], largest[3])));
}

// Copies rows of float32, whose length is a multiple of 32, side by side, and
// raises 8 lanes to the bits of their largest magnitudes. `step` is in bytes.
template <int Rows>
static inline void copy_rows(const char *x, int64_t step, int64_t n, float *out,
                             int64_t stride, int32_t *lanes) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i *kept = reinterpret_cast<__m256i *>(lanes);
  __m256i largest[4] = {_mm256_loadu_si256(kept)};
  for (int64_t j = 0; j < n; j += 32)
    for (int i = 0; i < Rows; ++i)
      for (int v = 0; v < 4; ++v) {
        const __m256i bits = _mm256_loadu_si256(
            reinterpret_cast<const __m256i *>(x + i * step) + j / 8 + v);
        _mm256_storeu_si256(
            reinterpret_cast<__m256i *>(out + i * stride + j) + v, bits);
        largest[v] = _mm256_max_epi32(largest[v], _mm256_and_si256(bits, mask));
      }
  _mm256_storeu_si256(
      kept, _mm256_max_epi32(_mm256_max_epi32(largest[0], largest[1]),
                             _mm256_max_epi32(largest[2], largest[3])));
}

} // namespace steelyard::STEELYARD_ISA

#endif
