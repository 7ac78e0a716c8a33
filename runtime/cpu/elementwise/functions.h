// Functions of float32 beside the activations, step by step the same on every
// instruction set. Within 3 units in the last place: exp, tanh, erf, sigmoid.
// Derivatives are sums of two terms: within 8 units in the last place of the
// larger of the terms' magnitudes. Loops over them vectorize. Included by
// kernel sources only.
#pragma once

#include "cpu/produce/activate.h"

namespace steelyard::STEELYARD_ISA {

// e^-(y + rest) as one number.
static inline float whole(const Exponential &e) {
  return fused(e.excess, e.low, e.low) * e.high;
}

static inline float exponential(float x) {
  constexpr float largest = 100.0f; // beyond it everything is infinite
  const float result = whole(exp_of_minus(x > largest ? -largest : -x, 0.0f));
  return x == x ? result : x;
}

// 1 / (1 + e^-(y + rest)) for x >= 0 and the rest of 1 for x < 0, as `gate`
// computes it.
static inline float logistic(float x, const Exponential &e) {
  const float low = fused(e.excess, e.low, e.low);
  const float quotient = (x < 0 ? low : 1.0f) / fused(low, e.high, 1.0f);
  return x < 0 ? quotient * e.high : quotient;
}

static inline float sigmoid(float x) {
  const float result = logistic(x, exp_of_minus(magnitude_of(x), 0.0f));
  return x == x ? result : x;
}

// With the sign of another number.
static inline float signed_as(float magnitude, float x) {
  return float_of(bits_of(magnitude) | (bits_of(x) & ~kAbsMask));
}

static inline float hyperbolic_tangent(float x) {
  constexpr float terms[] = {-0x1.555556p-2f, 0x1.1110eap-3f,  -0x1.ba08c8p-5f,
                             0x1.64a996p-6f,  -0x1.116ac8p-7f, 0x1.2c8698p-9f};
  const float y = magnitude_of(x), limited = y < 40.0f ? y : 40.0f;
  const float e = whole(exp_of_minus(2 * limited, 0.0f));
  const float large = 1.0f - 2 * e / (1.0f + e);
  const float square = x * x;
  float sum = terms[5];
#pragma GCC unroll 5
  for (int i = 4; i >= 0; --i)
    sum = fused(sum, square, terms[i]);
  const float small = fused(x * square, sum, x);
  const float result = y < 0.625f ? small : signed_as(large, x);
  return x == x ? result : x;
}

static inline float upper_tail(float m, float square, const Exponential &e) {
  return scaled_tail(m, square, e) * e.high;
}

static inline float error_function(float x) {
  constexpr float terms[] = {0x1.20dd76p+0f,  -0x1.812746p-2f, 0x1.ce2f08p-4f,
                             -0x1.b829a8p-6f, 0x1.5628eep-8f,  -0x1.bcbe9ap-11f,
                             0x1.d82692p-14f, -0x1.438404p-17f};
  constexpr float root = 0x1.6a09e6p+0f; // of 2
  const float y = magnitude_of(x), limited = y < 8.0f ? y : 8.0f;
  const float exact = limited * limited;
  const float rest = fused(limited, limited, -exact);
  const float m = root * limited;
  const float tail = upper_tail(m, m * m, exp_of_minus(exact, rest));
  const float square = x * x;
  float sum = terms[7];
#pragma GCC unroll 7
  for (int i = 6; i >= 0; --i)
    sum = fused(sum, square, terms[i]);
  const float result = y < 1.0f ? x * sum : signed_as(1.0f - 2 * tail, x);
  return x == x ? result : x;
}

// s + x * slope * s * (1 - s), where s is 1 / (1 + e^-y) and `e` is e^-|y|: the
// derivative of x * s, if `slope` is that of y.
static inline float gate_slope(float x, float slope, const Exponential &e) {
  const float power = whole(e), share = 1.0f / (1.0f + power);
  const float s = x < 0 ? power * share : share;
  return fused(x * slope, power * share * share, s);
}

static inline float silu_slope(float x) {
  // Beyond this, e^-|x| is 0: x must not be infinite then.
  constexpr float limit = 0x1p10f;
  const float magnitude = magnitude_of(x);
  const float limited = magnitude > limit ? signed_as(limit, x) : x;
  return gate_slope(limited, 1.0f, exp_of_minus(magnitude, 0.0f));
}

// Of x times the normal distribution: that, and x times its density.
static inline float gelu_slope(float x) {
  constexpr float density = 0x1.988454p-2f; // 1 / sqrt(2 pi)
  const float magnitude = magnitude_of(x);
  const float m = magnitude < kGeluLimit ? magnitude : kGeluLimit;
  const float square = m * m, square_rest = fused(m, m, -square);
  const Exponential e = exp_of_minus(0.5f * square, 0.5f * square_rest);
  const float tail = upper_tail(m, square, e);
  const float product = signed_as(m * density, x) * whole(e);
  const float result = product + (x < 0 ? tail : 1.0f - tail);
  return x == x ? result : x;
}

static inline float gelu_tanh_slope(float x) {
  const float magnitude = magnitude_of(x);
  const float m = magnitude < kGeluLimit ? magnitude : kGeluLimit;
  const Split y = gelu_argument(m);
  const float slope = fused(3 * kGeluThird, m * m, kGeluFirst);
  const float result =
      gate_slope(signed_as(m, x), slope, exp_of_minus(y.value, y.rest));
  return x == x ? result : x;
}

} // namespace steelyard::STEELYARD_ISA
