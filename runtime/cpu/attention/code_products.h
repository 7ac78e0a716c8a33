// The two products of attention for a few queries with keys and values that are
// E4M3 codes. Included by kernel sources only.
//
// A code, shifted, is the bits of a float32: its value * 2^-120. So 4 vectors
// of values are made of one vector of codes by shifts and masks alone, in an
// order of their own: what is multiplied with them, and what is summed, is in
// that order too. The power of two and the scale of a token are left to its
// score and to its weight.
#pragma once

#include "cpu/attention/few_products.h"
#include "cpu/attention/heads.h"

namespace steelyard::STEELYARD_ISA {

typedef int16_t WidestHalves __attribute__((vector_size(sizeof(WidestFloats))));
typedef uint8_t WidestBytes __attribute__((vector_size(sizeof(WidestFloats))));
typedef int64_t WidestLongs __attribute__((vector_size(sizeof(WidestFloats))));

// Codes that are decoded together.
static constexpr int64_t kCodeGroup = 4 * kLanes;
// As many queries as have their sums in registers; for more, codes are decoded
// into memory first.
static constexpr int64_t kCodeQueries = kLanes == 16 ? 4 : 3;

// Whether codes can be multiplied without decoding whole rows of them first.
static inline bool has_code_groups(const KeptHead &x) {
  return x.scales && x.rows.column_stride == 1 &&
         x.rows.columns % kCodeGroup == 0;
}

// Where column d is: lane i of vector v of a group is its column 4 i + v.
static inline int64_t place_of_column(int64_t d) {
  const int64_t within = d % kCodeGroup;
  return d - within + within % 4 * kLanes + within / 4;
}

static inline void decode_group(const uint8_t *codes, WidestFloats (&out)[4]) {
  const WidestHalves pairs = load<WidestHalves>(codes);
  const WidestWords even = as<WidestWords>((pairs << 8) >> 4),
                    odd = as<WidestWords>(pairs >> 4);
  // The sign, and where the exponent and the mantissa of a code are now.
  constexpr int32_t kept = static_cast<int32_t>(0x87f00000);
  out[0] = as<WidestFloats>((even << 16) & kept);
  out[1] = as<WidestFloats>((odd << 16) & kept);
  out[2] = as<WidestFloats>(even & kept);
  out[3] = as<WidestFloats>(odd & kept);
}

// Powers of two, of which `up` makes the largest of some factors about 2^119,
// so that products with codes are neither too large nor subnormal; `down`
// makes up for it and for the 2^-120 of codes.
struct Powers {
  float up, down;
};

// The largest magnitude; NaN counts as the largest of all.
static inline float largest_of(const float *values, int64_t n, int64_t stride) {
  // As integers, which have the same order.
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits =
        static_cast<int32_t>(bits_of(values[i * stride]) & kAbsMask);
    largest = bits > largest ? bits : largest;
  }
  return float_of(static_cast<uint32_t>(largest));
}

static inline Powers powers_for(float largest) {
  constexpr int32_t lowest = -7, highest = 126;
  int32_t exponent = static_cast<int32_t>(bits_of(largest) >> 23 & 255) - 127;
  if (exponent == 128) // what is not finite stays so
    exponent = 0;
  exponent = exponent < lowest    ? lowest
             : exponent > highest ? highest
                                  : exponent;
  return {float_of(static_cast<uint32_t>(127 + 119 - exponent) << 23),
          float_of(static_cast<uint32_t>(127 + 1 + exponent) << 23)};
}

static inline bool is_nan_code(uint8_t code) { return (code | 0x80) == 0xff; }

// Whether any code of some rows is NaN, which `decode_group` does not know.
static inline bool has_nan(const KeptHead &x, int64_t first, int64_t n) {
  // Rows that follow each other are one.
  const bool is_one = x.rows.row_stride == x.rows.columns;
  const int64_t rows = is_one ? 1 : n,
                columns = is_one ? n * x.rows.columns : x.rows.columns;
  WidestBytes largest = {};
  for (int64_t i = 0; i < rows; ++i) {
    const uint8_t *codes = x.codes(first + i);
    for (int64_t d = 0; d < columns; d += sizeof largest) {
      const WidestBytes found =
          load<WidestBytes>(codes + d) | static_cast<uint8_t>(0x80);
      largest = found > largest ? found : largest;
    }
  }
  const WidestLongs found =
      as<WidestLongs>(largest == static_cast<uint8_t>(0xff));
  int64_t any = 0;
  for (unsigned i = 0; i < sizeof found / sizeof found[0]; ++i)
    any |= found[i];
  return any != 0;
}

// Rows of codes as rows of values * 2^-120, in the order of groups.
static inline void spread_codes(const KeptHead &x, int64_t first, int64_t n,
                                float *out) {
  const int64_t columns = x.rows.columns;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t d = 0; d < columns; d += kCodeGroup, out += kCodeGroup) {
      WidestFloats lanes[4];
      decode_group(x.codes(first + i) + d, lanes);
      for (int v = 0; v < 4; ++v)
        store(out + v * kLanes, lanes[v]);
    }
}

// scores[row][key] for kKeysPerSum keys, without their scales.
template <int rows>
static inline void multiply_key_codes(const float *queries, int64_t columns,
                                      const uint8_t *key, int64_t stride,
                                      int64_t keys, float *scores,
                                      int64_t scores_stride) {
  WidestFloats sum[rows][kKeysPerSum] = {};
  // Past the last key the first one is read again.
  const uint8_t *each[kKeysPerSum];
  for (int k = 0; k < kKeysPerSum; ++k)
    each[k] = key + (k < keys ? k : 0) * stride;
  for (int64_t d = 0; d < columns; d += kCodeGroup)
#pragma GCC unroll 4
    for (int k = 0; k < kKeysPerSum; ++k) {
      WidestFloats lanes[4];
      decode_group(each[k] + d, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v)
          sum[r][k] = multiply_add(
              load<WidestFloats>(queries + r * columns + d + v * kLanes),
              lanes[v], sum[r][k]);
    }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
    store(scores + r * scores_stride, lane_sums(sum[r]));
}

// sums = factor sums + weight value; weights have the scales of values in them.
// Values are fetched `ahead` of their turn.
template <int rows>
static inline void
multiply_value_codes(const float *weights, int64_t weights_stride,
                     const uint8_t *value, int64_t stride, int64_t keys,
                     int64_t ahead, const float *factors, float *sums,
                     int64_t columns) {
  for (int64_t d = 0; d < columns; d += kCodeGroup) {
    WidestFloats sum[rows][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[r][v] = load<WidestFloats>(sums + r * columns + d + v * kLanes) *
                    all_lanes(factors[r]);
    for (int64_t k = 0; k < keys; ++k) {
      WidestFloats lanes[4];
      decode_group(value + k * stride + d, lanes);
      __builtin_prefetch(value + (k + ahead) * stride + d);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v)
          sum[r][v] = multiply_add(all_lanes(weights[r * weights_stride + k]),
                                   lanes[v], sum[r][v]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        store(sums + r * columns + d + v * kLanes, sum[r][v]);
  }
}

} // namespace steelyard::STEELYARD_ISA
