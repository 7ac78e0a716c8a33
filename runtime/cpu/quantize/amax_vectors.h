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
// The four below them are fetched if `fetch_below`.
template <class Integer, class Element>
static inline Integer amax_of_4_rows(const Element *x, int64_t stride,
                                     int64_t n, bool fetch_below) {
  constexpr int64_t lanes = 32 / sizeof(Element);
  const __m256i mask = sizeof(Integer) == 4 ? _mm256_set1_epi32(0x7fffffff)
                                            : _mm256_set1_epi16(0x7fff);
  __m256i largest[4] = {};
  for (int64_t j = 0; j < n; j += 4 * lanes)
    for (int i = 0; i < 4; ++i) {
      const Element *row = x + i * stride + j;
      if (fetch_below) {
        __builtin_prefetch(row + 4 * stride);
        __builtin_prefetch(row + 4 * stride + 2 * lanes);
      }
      for (int v = 0; v < 4; ++v) {
        const __m256i bits = _mm256_loadu_si256(
            reinterpret_cast<const __m256i *>(row + v * lanes));
        largest[v] = max_of<Integer>(largest[v], _mm256_and_si256(bits, mask));
      }
    }
  return largest_lane<Integer>(
      max_of<Integer>(max_of<Integer>(largest[0], largest[1]),
                      max_of<Integer>(largest[2], largest[3])));
}

} // namespace steelyard::STEELYARD_ISA

#endif
