// Activations of float32, step by step the same on every instruction set:
// within 5 units in the last place, tails included. Loops over them vectorize.
// Included by kernel sources only.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/produce/activations.h"
#include "cpu/simd/exponential.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// e^-y = (1 + excess) * low * high. There are two powers of two because one
// cannot hold the exponents of the smallest results.
struct Exponential {
  float excess, low, high;
};

// e^-(y + rest) for y >= 0 and a small rest; 0 where it is too small to change
// any result.
static inline Exponential exp_of_minus(float y, float rest) {
  constexpr uint32_t anchor_bits = 0x4b400000, twice_bias = 254;
  const bool seen = y < 172.0f;
  const float limited = seen ? y : 172.0f;
  const float shifted = fused(limited, -kLog2E, kAnchor);
  const float powers = shifted - kAnchor;
  const float r =
      fused(powers, -kLn2, -limited) - fused(powers, kLn2Rest, rest);
  float sum = kExpTerms[4];
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i)
    sum = fused(sum, r, kExpTerms[i]);
  const uint32_t exponents = bits_of(shifted) - (anchor_bits - twice_bias);
  const uint32_t half = exponents >> 1;
  return {fused(sum, r * r, r), float_of(half << 23),
          seen ? float_of((exponents - half) << 23) : 0.0f};
}

// x / (1 + e^-(y + rest)) for x >= 0 and x / (1 + e^(y + rest)) for x < 0: `y`
// and `rest` are for |x|. For x < 0 both sides of the fraction are multiplied
// by e^-(y + rest), so that nothing overflows; its last power of two comes
// after the division, where a tiny result is rounded once.
static inline float gate(float x, float y, float rest) {
  const Exponential e = exp_of_minus(y, rest);
  const float low = fused(e.excess, e.low, e.low);
  const float numerator = x < 0 ? fused(x, e.excess, x) * e.low : x;
  const float quotient = numerator / fused(low, e.high, 1.0f);
  return x < 0 ? quotient * e.high : quotient;
}

static inline float magnitude_of(float x) {
  return float_of(bits_of(x) & kAbsMask);
}

// Beyond this, gelu is x or 0.
static constexpr float kGeluLimit = 32.0f;

static inline float silu(float x) { return gate(x, magnitude_of(x), 0.0f); }

// A number and what rounding took from it.
struct Split {
  float value, rest;
};

static constexpr float kGeluFirst = 0x1.988454p+0f, kGeluThird = 0x1.2444f2p-4f;

// m * (first + third * m^2): what gelu_tanh of |x| = m is a gate of.
static inline Split gelu_argument(float m) {
  constexpr float first = kGeluFirst, first_rest = -0x1.857936p-25f;
  constexpr float third = kGeluThird, third_rest = 0x1.49b16ap-29f;
  const float square = m * m, square_rest = fused(m, m, -square);
  const float cubic = third * square, cubic_rest = fused(third, square, -cubic);
  const float slope = cubic + first, added = slope - cubic;
  const float sum_rest = (cubic - (slope - added)) + (first - added);
  const float factor_rest =
      fused(third, square_rest, fused(third_rest, square, first_rest));
  const float slope_rest = sum_rest + (cubic_rest + factor_rest);
  const float y = m * slope;
  return {y, fused(m, slope, -y) + m * slope_rest};
}

static inline float gelu_tanh(float x) {
  const float magnitude = magnitude_of(x);
  const float m = magnitude < kGeluLimit ? magnitude : kGeluLimit;
  const Split y = gelu_argument(m);
  return gate(x, y.value, y.rest);
}

// The upper tail of the normal distribution beyond m >= 0, over the last power
// of two of `e`, which is e^(-m^2/2): the rest is a ratio of polynomials of m.
static inline float scaled_tail(float m, float square, const Exponential &e) {
  constexpr float top[] = {0.5f, 0x1.c04cf8p-2f, 0x1.76734p-3f, 0x1.4bb448p-5f,
                           0x1.0c3bbep-8f};
  constexpr float bottom[] = {1.0f,          0x1.ac68aap+0f, 0x1.336eaep+0f,
                              0x1.dfa79p-2f, 0x1.9fc198p-4f, 0x1.502d3ep-7f};
  // Terms are added in pairs, the first two last: few roundings for any m.
  const float over = fused(square, top[4], fused(top[3], m, top[2]));
  const float numerator = fused(m, fused(m, over, top[1]), top[0]);
  const float under = fused(square, fused(bottom[5], m, bottom[4]),
                            fused(bottom[3], m, bottom[2]));
  const float denominator = fused(m, fused(m, under, bottom[1]), bottom[0]);
  return fused(numerator, e.excess, numerator) / denominator * e.low;
}

// x times the normal distribution.
static inline float gelu(float x) {
  const float magnitude = magnitude_of(x);
  const float m = magnitude < kGeluLimit ? magnitude : kGeluLimit;
  const float square = m * m, square_rest = fused(m, m, -square);
  const Exponential e = exp_of_minus(0.5f * square, 0.5f * square_rest);
  const float tail = scaled_tail(m, square, e);
  return x < 0 ? x * tail * e.high : fused(-m, tail * e.high, x);
}

static inline float relu(float x) { return x < 0 ? 0.0f : x; }

template <float (*activation)(float)>
static inline void activate_all(float *values, int64_t n) {
  for (int64_t j = 0; j < n; ++j)
    values[j] = activation(values[j]);
}

// In place.
static inline void activate(Activation activation, float *values, int64_t n) {
  switch (activation) {
  case Activation::none:
    return;
  case Activation::relu:
    return activate_all<relu>(values, n);
  case Activation::gelu:
    return activate_all<gelu>(values, n);
  case Activation::gelu_tanh:
    return activate_all<gelu_tanh>(values, n);
  case Activation::silu:
    return activate_all<silu>(values, n);
  }
}

} // namespace steelyard::STEELYARD_ISA
