// Sine and cosine of float32, rounded from float64: within 1 unit in the last
// place for any angle, and step by step the same on every instruction set.
// Loops over `small_sine` vectorize. Included by kernel sources only.
#pragma once

#include "cpu/produce/activate.h"

namespace steelyard::STEELYARD_ISA {

// Below this many, quarters of a turn times the first two parts of pi / 2 are
// exact.
static constexpr float kSmallAngles = 0x1p20f;

// The sine of an angle that is `rest` beyond some quarters of a turn.
static inline float sine_of_rest(double rest, int64_t quarters) {
  const double square = rest * rest;
  double odd = -1.0 / 39916800, even = 1.0 / 479001600;
  constexpr double odd_terms[] = {1.0 / 362880, -1.0 / 5040, 1.0 / 120,
                                  -1.0 / 6, 1.0};
  constexpr double even_terms[] = {-1.0 / 3628800, 1.0 / 40320, -1.0 / 720,
                                   1.0 / 24,       -1.0 / 2,    1.0};
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i)
    odd = odd * square + odd_terms[i];
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i)
    even = even * square + even_terms[i];
  const double value = quarters & 1 ? even : rest * odd;
  return static_cast<float>(quarters & 2 ? -value : value);
}

// sin(x + turns * pi / 2) for |x| < kSmallAngles.
static inline float small_sine(float x, int64_t turns) {
  constexpr double per_quarter = 0x1.45f306dc9c883p-1; // 2 / pi
  // Their sum is pi / 2.
  constexpr double parts[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34,
                              0x1.3198a2e037073p-69};
  constexpr double anchor = 0x1.8p52; // adding it rounds to an integer
  const double wide = x, anchored = wide * per_quarter + anchor;
  const double quarters = anchored - anchor;
  const double rest = ((wide - quarters * parts[0]) - quarters * parts[1]) -
                      quarters * parts[2];
  return sine_of_rest(rest, __builtin_bit_cast(int64_t, anchored) + turns);
}

// The same for |x| >= kSmallAngles. Of 2 / pi, only those bits are multiplied
// that are neither whole turns of x nor too small to matter.
static inline float large_sine(float x, int64_t turns) {
  constexpr uint32_t bits_of_quotient[] = {0,          0xa2f9836e, 0x4e441529,
                                           0xfc2757d1, 0xf534ddc0, 0xdb629599,
                                           0x3c439041, 0xfe5163ab};
  constexpr double quarter = 0x1.921fb54442d18p+0; // pi / 2
  const uint32_t bits = bits_of(magnitude_of(x));
  const int exponent = static_cast<int>(bits >> 23) - 150;
  const uint64_t factor = (bits & 0x7fffff) | 0x800000;
  const int first = exponent + 30, word = first / 32, shift = first % 32;
  uint64_t products[3], carried = 0; // 96 bits, of which two count quarters
  for (int i = 2; i >= 0; --i) {
    const uint64_t pair = uint64_t{bits_of_quotient[word + i]} << 32 |
                          bits_of_quotient[word + i + 1];
    products[i] = factor * (pair << shift >> 32) + carried;
    carried = products[i] >> 32;
    products[i] &= 0xffffffff;
  }
  int64_t quarters = static_cast<int64_t>(products[0] >> 30);
  int64_t fraction =
      static_cast<int64_t>((products[0] & 0x3fffffff) << 32 | products[1]);
  if (fraction >= int64_t{1} << 61) {
    fraction -= int64_t{1} << 62;
    ++quarters;
  }
  const double last = static_cast<double>(products[2]) * 0x1p-32;
  const double rest =
      (static_cast<double>(fraction) + last) * 0x1p-62 * quarter;
  return x < 0 ? sine_of_rest(-rest, turns - quarters)
               : sine_of_rest(rest, turns + quarters);
}

static inline float sine(float x, int64_t turns) {
  const float magnitude = magnitude_of(x);
  if (magnitude < kSmallAngles)
    return small_sine(x, turns);
  return magnitude < __builtin_inff() ? large_sine(x, turns)
                                      : float_of(0x7fc00000);
}

} // namespace steelyard::STEELYARD_ISA
