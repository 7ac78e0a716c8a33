// Largest magnitudes of rows that are read side by side. Included by kernel
// sources only.
#pragma once

#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// The largest of the integers in a vector, none of them negative.
template <class Integer, class Vector>
static inline Integer largest_lane(Vector lanes) {
  alignas(32) Integer values[32 / sizeof(Integer)];
  store(values, lanes);
  Integer largest = 0;
  for (const Integer value : values)
    largest = value > largest ? value : largest;
  return largest;
}

template <class Integer> struct LanesOf;
template <> struct LanesOf<int32_t> {
  using Vector = SignedWords8;
};
template <> struct LanesOf<int16_t> {
  using Vector = SignedHalves16;
};

// Bits of the largest magnitude of four rows, whose length is a multiple of 64.
// The four below them are fetched if `fetch_below`.
template <class Integer, class Element>
static inline Integer amax_of_4_rows(const Element *x, int64_t stride,
                                     int64_t n, bool fetch_below) {
  using Lanes = typename LanesOf<Integer>::Vector;
  constexpr int64_t lanes = 32 / sizeof(Element);
  constexpr Integer mask = sizeof(Integer) == 4 ? 0x7fffffff : 0x7fff;
  Lanes largest[4] = {};
  for (int64_t j = 0; j < n; j += 4 * lanes)
    for (int i = 0; i < 4; ++i) {
      const Element *row = x + i * stride + j;
      if (fetch_below) {
        __builtin_prefetch(row + 4 * stride);
        __builtin_prefetch(row + 4 * stride + 2 * lanes);
      }
      for (int v = 0; v < 4; ++v)
        largest[v] = maximum(largest[v], load<Lanes>(row + v * lanes) & mask);
    }
  return largest_lane<Integer>(maximum(maximum(largest[0], largest[1]),
                                       maximum(largest[2], largest[3])));
}

} // namespace steelyard::STEELYARD_ISA
