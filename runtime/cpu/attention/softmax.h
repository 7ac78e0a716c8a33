// A softmax that goes on as keys come: exponentials are of scores less the
// largest one so far, and what was summed before is multiplied down when a
// larger one comes. Included by kernel sources only.
#pragma once

#include "cpu/simd/exponential.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// Without a sign: their sums may wrap around.
typedef uint32_t WidestBits __attribute__((vector_size(sizeof(WidestFloats))));

static constexpr int kLanes = sizeof(WidestFloats) / sizeof(float);
static constexpr float kNoScore = -__builtin_inff();

static inline WidestFloats all_lanes(float x) { return x - WidestFloats{}; }

// A NaN in `b` is ignored.
static inline WidestFloats maximum(WidestFloats a, WidestFloats b) {
  return b > a ? b : a;
}

// e^x for x <= 0, within 2 units in the last place; 0 below the normal numbers,
// and NaN of NaN.
static inline WidestFloats exp_of_negative(WidestFloats x) {
  constexpr float least = -87.0f;
  const WidestFloats anchor = all_lanes(kAnchor);
  const WidestFloats shifted = multiply_add(x, all_lanes(kLog2E), anchor);
  const WidestFloats powers = shifted - anchor;
  WidestFloats r = multiply_add(powers, all_lanes(-kLn2), x);
  r = multiply_add(powers, all_lanes(-kLn2Rest), r);
  WidestFloats sum = all_lanes(kExpTerms[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i)
    sum = multiply_add(sum, r, all_lanes(kExpTerms[i]));
  const WidestFloats excess = multiply_add(sum, r * r, r);
  const WidestFloats power =
      as<WidestFloats>((as<WidestBits>(shifted) << 23) + (127u << 23));
  // A product, not a sum of exponents: NaN stays NaN.
  const WidestFloats found = multiply_add(excess, power, power);
  return x < all_lanes(least) ? WidestFloats{} : found;
}

// What scores are compared with: no -inf, which would make NaN of another.
static inline WidestFloats finite_maximum(WidestFloats largest) {
  return largest == all_lanes(kNoScore) ? WidestFloats{} : largest;
}

// The same of one number; the lanes are those of a vector, so that one query
// gives the same as many.
static inline float exp_of_negative(float x) {
  return exp_of_negative(all_lanes(x))[0];
}

static inline float finite_maximum(float largest) {
  return largest == kNoScore ? 0.0f : largest;
}

} // namespace steelyard::STEELYARD_ISA
