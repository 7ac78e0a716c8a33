// Activations of float32, in float64 so that only the result is rounded: within
// one unit in the last place, tails included. No step depends on the
// instruction set, and loops over them vectorize.
#pragma once

#include "formats.h"

namespace steelyard {

enum class Activation : int { none, relu, gelu, gelu_tanh, silu };

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {

template <int Terms>
static inline double polynomial(const double (&terms)[Terms], double x) {
  double sum = terms[Terms - 1];
#pragma GCC unroll 16
  for (int i = Terms - 2; i >= 0; --i)
    sum = sum * x + terms[i];
  return sum;
}

// e^-y for y >= 0, to 2^-28; exactly 0 where no float32 product could see it.
static inline double exp_of_minus(double y) {
  constexpr double terms[] = {0.499999933712, 0.166665192056, 0.0416684008898,
                              0.00836889168619, 0.00138144501964};
  constexpr double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;
  constexpr double anchor = 0x1.8p52; // adding it rounds to an integer
  const double limited = y < 700.0 ? -y : -700.0;
  const double shifted = limited * log2_e + anchor;
  const double r = limited - (shifted - anchor) * ln_2;
  const double mantissa = polynomial(terms, r) * (r * r) + r + 1.0;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return y < 700.0 ? mantissa * power : 0.0;
}

// x / (1 + e^-y) where y has the sign of x, without overflow.
static inline float gate(double x, double y) {
  const double e = exp_of_minus(y < 0 ? -y : y);
  return static_cast<float>((x < 0 ? x * e : x) / (1.0 + e));
}

static inline float silu(float x) { return gate(x, x); }

static inline float gelu_tanh(float x) {
  constexpr double twice_sqrt_2_over_pi = 1.5957691216057308;
  const double wide = x;
  return gate(wide, wide * (twice_sqrt_2_over_pi +
                            twice_sqrt_2_over_pi * 0.044715 * (wide * wide)));
}

// x times the normal distribution: its upper tail is e^(-x^2/2) times a
// function of |x| that is smooth in 1 / (1 + 0.3 |x|).
static inline float gelu(float x) {
  constexpr double terms[] = {0.119686716815,  0.119571314773,  0.110239369362,
                              0.0783721192592, 0.0962052188275, -0.079509710539,
                              0.191883946184,  -0.228285278032, 0.112465000994,
                              -0.0206286993776};
  const double wide = x, magnitude = wide < 0 ? -wide : wide;
  const double t = 1.0 / (1.0 + 0.3 * magnitude);
  const double tail =
      t * polynomial(terms, t) * exp_of_minus(0.5 * (wide * wide));
  return static_cast<float>(wide * (wide < 0 ? tail : 1.0 - tail));
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

} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
