// The two products of attention for a few queries, with the columns of a head
// in the lanes of vectors: every key and value is read once. Included by kernel
// sources only.
//
// Rows of queries, values and sums are whole vectors; columns that are missing
// are zeros.
#pragma once

#include "cpu/attention/each_few.h"
#include "cpu/attention/softmax.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kKeysPerSum = 4;

// The sum of the lanes of each vector.
static inline Floats4 lane_sums(const WidestFloats (&x)[kKeysPerSum]) {
  Floats8 folded[kKeysPerSum] = {};
  for (int i = 0; i < kKeysPerSum; ++i) {
    constexpr int parts = (sizeof x[0] + 31) / 32;
    Floats8 each[parts] = {};
    std::memcpy(each, &x[i], sizeof x[0]);
    for (int part = 0; part < parts; ++part)
      folded[i] += each[part];
  }
  return sums_of_4(folded);
}

// The largest of lanes of which none is NaN.
static inline float largest_lane(WidestFloats x) {
  Floats4 parts[kLanes / 4];
  std::memcpy(parts, &x, sizeof x);
  for (int n = kLanes / 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i)
      parts[i] = parts[i + n] > parts[i] ? parts[i + n] : parts[i];
  const Floats4 all = parts[0];
  const Floats4 turned = __builtin_shufflevector(all, all, 2, 3, 0, 1);
  const Floats4 pairs = turned > all ? turned : all;
  return pairs[0] > pairs[1] ? pairs[0] : pairs[1];
}

// scores[row][key] for kKeysPerSum keys.
template <int rows>
static inline void multiply_few_keys(const float *queries, int64_t columns,
                                     const float *key, int64_t stride,
                                     int64_t keys, float *scores,
                                     int64_t scores_stride) {
  WidestFloats sum[rows][kKeysPerSum] = {};
  // Past the last key the first one is read again.
  const float *each[kKeysPerSum];
  for (int k = 0; k < kKeysPerSum; ++k)
    each[k] = key + (k < keys ? k : 0) * stride;
  for (int64_t d = 0; d < columns; d += kLanes) {
    WidestFloats lanes[kKeysPerSum];
#pragma GCC unroll 4
    for (int k = 0; k < kKeysPerSum; ++k)
      lanes[k] = load<WidestFloats>(each[k] + d);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const WidestFloats query = load<WidestFloats>(queries + r * columns + d);
#pragma GCC unroll 4
      for (int k = 0; k < kKeysPerSum; ++k)
        sum[r][k] = multiply_add(query, lanes[k], sum[r][k]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
    store(scores + r * scores_stride, lane_sums(sum[r]));
}

// sums = factor sums + weight value in `vectors` vectors.
template <int rows, int vectors>
static inline void
multiply_few_values(const float *weights, int64_t weights_stride,
                    const float *value, int64_t stride, int64_t keys,
                    const float *factors, float *sums, int64_t columns) {
  WidestFloats sum[rows][vectors];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = load<WidestFloats>(sums + r * columns + v * kLanes) *
                  all_lanes(factors[r]);
  for (int64_t k = 0; k < keys; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const WidestFloats lanes =
          load<WidestFloats>(value + k * stride + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r)
        sum[r][v] = multiply_add(all_lanes(weights[r * weights_stride + k]),
                                 lanes, sum[r][v]);
    }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      store(sums + r * columns + v * kLanes, sum[r][v]);
}

// The same for any number of columns.
template <int rows>
static inline void
multiply_few_values(const float *weights, int64_t weights_stride,
                    const float *value, int64_t stride, int64_t keys,
                    const float *factors, float *sums, int64_t columns) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= columns; d += 4 * kLanes)
    multiply_few_values<rows, 4>(weights, weights_stride, value + d, stride,
                                 keys, factors, sums + d, columns);
  for (; d < columns; d += kLanes)
    multiply_few_values<rows, 1>(weights, weights_stride, value + d, stride,
                                 keys, factors, sums + d, columns);
}

} // namespace steelyard::STEELYARD_ISA
