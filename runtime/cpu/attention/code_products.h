// The two products of attention for a few queries with keys and values that are
// E4M3 codes. Included by kernel sources only.
//
// A code, shifted, is the bits of a float32: its value * 2^-120. So 4 vectors
// of values are made of one vector of codes by shifts and masks alone. The
// power of two and the scale of a token are left to its score and to its
// weight.
//
// Keys are in the lanes of scores: words of 4 codes are turned before they are
// decoded, which costs less than to sum the lanes of each query and key. Values
// are decoded where they lie, in an order of their own, which their sums have,
// too.
#pragma once

#include "cpu/attention/few_products.h"
#include "cpu/attention/heads.h"

namespace steelyard::STEELYARD_ISA {

typedef int16_t WidestHalves __attribute__((vector_size(sizeof(WidestFloats))));
typedef uint8_t WidestBytes __attribute__((vector_size(sizeof(WidestFloats))));
typedef uint32_t WidestCodes __attribute__((vector_size(sizeof(WidestFloats))));
typedef uint64_t WidestLongs __attribute__((vector_size(sizeof(WidestFloats))));

// Codes that are decoded together.
static constexpr int64_t kCodeGroup = 4 * kLanes;
// As many queries as have their sums in registers.
static constexpr int kCodeQueries = kLanes == 16 ? 4 : 2;
// Sums of a score, by turns, so that none waits for another.
static constexpr int kScoreSums = kLanes == 16 ? 4 : 2;

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

// out[i] is code i of each word.
static inline void decode_words(WidestCodes codes, WidestFloats (&out)[4]) {
  const WidestHalves pairs = as<WidestHalves>(codes);
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

// The largest finite magnitude: what is not finite stays so by any factor.
static inline float largest_of(const float *values, int64_t n, int64_t stride) {
  // As integers, which have the same order.
  constexpr int32_t infinity = 0x7f800000;
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits =
        static_cast<int32_t>(bits_of(values[i * stride]) & kAbsMask);
    largest = bits > largest && bits < infinity ? bits : largest;
  }
  return float_of(static_cast<uint32_t>(largest));
}

static inline Powers powers_for(float largest) {
  constexpr int32_t lowest = -7, highest = 126;
  int32_t exponent = static_cast<int32_t>(bits_of(largest) >> 23 & 255) - 127;
  exponent = exponent < lowest    ? lowest
             : exponent > highest ? highest
                                  : exponent;
  return {float_of(static_cast<uint32_t>(127 + 119 - exponent) << 23),
          float_of(static_cast<uint32_t>(127 + 1 + exponent) << 23)};
}

static inline bool is_nan_code(uint8_t code) { return (code | 0x80) == 0xff; }

// Looks for NaN among codes, which `decode_words` does not know.
class NanWatch {
public:
  void see(WidestCodes codes) {
    const WidestBytes found = as<WidestBytes>(codes) | sign;
    largest_ = found > largest_ ? found : largest_;
  }

  bool has_seen() const {
    const WidestLongs found =
        as<WidestLongs>(largest_ == static_cast<uint8_t>(0xff));
    uint64_t any = 0;
    for (unsigned i = 0; i < sizeof found / sizeof found[0]; ++i)
      any |= found[i];
    return any != 0;
  }

private:
  static constexpr uint8_t sign = 0x80;
  WidestBytes largest_ = {};
};

// out[i] is word i of each of kLanes rows.
static inline void turn_words(const uint8_t *codes, int64_t stride,
                              NanWatch &watch, WidestCodes (&out)[4]) {
  WidestCodes rows[4];
  for (int i = 0; i < 4; ++i) {
    rows[i] = as<WidestCodes>(load_pieces(codes + i * stride, 4 * stride));
    watch.see(rows[i]);
  }
  const WidestLongs low[2] = {as<WidestLongs>(zip_low(rows[0], rows[1])),
                              as<WidestLongs>(zip_low(rows[2], rows[3]))},
                    high[2] = {as<WidestLongs>(zip_high(rows[0], rows[1])),
                               as<WidestLongs>(zip_high(rows[2], rows[3]))};
  out[0] = as<WidestCodes>(zip_low(low[0], low[1]));
  out[1] = as<WidestCodes>(zip_high(low[0], low[1]));
  out[2] = as<WidestCodes>(zip_low(high[0], high[1]));
  out[3] = as<WidestCodes>(zip_high(high[0], high[1]));
}

// scores[row][key] for kLanes keys, without their scales.
template <int rows>
static inline void multiply_key_codes(const float *queries, int64_t columns,
                                      const uint8_t *key, int64_t stride,
                                      float *scores, int64_t scores_stride,
                                      NanWatch &watch) {
  WidestFloats sum[rows][kScoreSums] = {};
  for (int64_t d = 0; d < columns; d += 16) {
    WidestCodes words[4];
    turn_words(key + d, stride, watch, words);
#pragma GCC unroll 4
    for (int word = 0; word < 4; ++word) {
      WidestFloats lanes[4];
      decode_words(words[word], lanes);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          sum[r][i % kScoreSums] =
              multiply_add(all_lanes(queries[r * columns + d + 4 * word + i]),
                           lanes[i], sum[r][i % kScoreSums]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    WidestFloats total = sum[r][0] + sum[r][1];
    if constexpr (kScoreSums == 4)
      total += sum[r][2] + sum[r][3];
    store(scores + r * scores_stride, total);
  }
}

// sums = factor sums + weight value; weights have the scales of values in them.
// Values are fetched `ahead` of their turn.
template <int rows>
static inline void
multiply_value_codes(const float *weights, int64_t weights_stride,
                     const uint8_t *value, int64_t stride, int64_t keys,
                     int64_t ahead, const float *factors, float *sums,
                     int64_t columns, NanWatch &watch) {
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
      const WidestCodes codes = load<WidestCodes>(value + k * stride + d);
      watch.see(codes);
      decode_words(codes, lanes);
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
