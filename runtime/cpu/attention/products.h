// The two products of attention, with queries in the lanes of vectors. Included
// by kernel sources only.
//
// A panel is kPanel queries. Its scores are [key][kPanel], and so are the
// exponentials made of them: neither keys nor values need be transposed.
#pragma once

#include "cpu/attention/each_few.h"
#include "cpu/attention/softmax.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kPanelVectors = kLanes == 16 ? 3 : 2;
static constexpr int kPanel = kPanelVectors * kLanes;
// As many sums as the registers hold beside what is multiplied.
static constexpr int kKeysAtOnce = kLanes == 16 ? 8 : 6;
static constexpr int kQueriesAtOnce = kLanes == 16 ? 6 : 4;
static constexpr int kColumnVectors = kLanes == 16 ? 4 : kHasVectors ? 3 : 2;
static_assert(kPanel % kQueriesAtOnce == 0);

// scores = key query^T for `vectors` vectors of queries: `queries` is
// [head size][kPanel], keys are rows.
template <int keys, int vectors>
static inline void multiply_keys(const float *queries, const float *key,
                                 int64_t stride, int64_t size, float *scores) {
  WidestFloats sum[keys][vectors] = {};
  const auto add = [&](int64_t d) {
    WidestFloats lanes[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      lanes[v] = load<WidestFloats>(queries + d * kPanel + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < keys; ++r) {
      const WidestFloats value = all_lanes(key[r * stride + d]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = multiply_add(value, lanes[v], sum[r][v]);
    }
  };
  constexpr int64_t line = 64 / sizeof(float);
  int64_t d = 0;
  for (; d + line <= size; d += line) {
    // The keys that come next.
#pragma GCC unroll 16
    for (int r = 0; r < keys; ++r)
      __builtin_prefetch(key + (keys + r) * stride + d);
#pragma GCC unroll 4
    for (int64_t i = 0; i < line; ++i)
      add(d + i);
  }
  for (; d < size; ++d)
    add(d);
#pragma GCC unroll 16
  for (int r = 0; r < keys; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      store(scores + r * kPanel + v * kLanes, sum[r][v]);
}

template <int vectors>
static inline void multiply_keys(const float *queries, const float *key,
                                 int64_t stride, int64_t size, int64_t keys,
                                 float *scores) {
  int64_t k = 0;
  for (; k + kKeysAtOnce <= keys; k += kKeysAtOnce)
    multiply_keys<kKeysAtOnce, vectors>(queries, key + k * stride, stride, size,
                                        scores + k * kPanel);
  for (; k + 4 <= keys; k += 4)
    multiply_keys<4, vectors>(queries, key + k * stride, stride, size,
                              scores + k * kPanel);
  for (; k < keys; ++k)
    multiply_keys<1, vectors>(queries, key + k * stride, stride, size,
                              scores + k * kPanel);
}

// The same for the first `vectors` vectors, at most all of a panel.
template <int most = kPanelVectors>
static inline void multiply_keys(int vectors, const float *queries,
                                 const float *key, int64_t stride, int64_t size,
                                 int64_t keys, float *scores) {
  if (vectors == most)
    multiply_keys<most>(queries, key, stride, size, keys, scores);
  else if constexpr (most > 1)
    multiply_keys<most - 1>(vectors, queries, key, stride, size, keys, scores);
}

// How far queries that follow each other see: the first sees `first` keys, each
// of the others one more if `grows`, all of them at most `keys`.
struct Sight {
  int64_t first, keys;
  bool grows;

  Sight after(int64_t queries) const {
    return {grows ? first + queries : first, keys, grows};
  }
  int64_t all_see() const {
    return first < 0 ? 0 : first < keys ? first : keys;
  }
};

// sums = factor sums + weight value, in `queries` rows and `vectors` vectors.
template <int queries, int vectors>
static inline void multiply_values(const float *weights, const float *value,
                                   int64_t stride, const Sight &sight,
                                   const float *factors, float *sums,
                                   int64_t sums_stride) {
  WidestFloats sum[queries][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < queries; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = load<WidestFloats>(sums + r * sums_stride + v * kLanes) *
                  all_lanes(factors[r]);
  int64_t k = 0;
  for (const int64_t end = sight.all_see(); k < end; ++k) {
    WidestFloats lanes[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      lanes[v] = load<WidestFloats>(value + k * stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < queries; ++r) {
      const WidestFloats weight = all_lanes(weights[k * kPanel + r]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = multiply_add(weight, lanes[v], sum[r][v]);
    }
  }
  // Not with a weight of 0, which makes NaN of an infinite value.
  const auto add = [&](int r, int64_t key) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = multiply_add(
          all_lanes(weights[key * kPanel + r]),
          load<WidestFloats>(value + key * stride + v * kLanes), sum[r][v]);
  };
  const int64_t end = sight.after(queries - 1).all_see();
  // Mostly each query sees one key more than that before it: this triangle has
  // a known size, so it unrolls without tests.
  if (end - k == queries - 1) {
#pragma GCC unroll 8
    for (int i = 0; i < queries - 1; ++i)
#pragma GCC unroll 8
      for (int r = i + 1; r < queries; ++r)
        add(r, k + i);
    k = end;
  }
  for (; k < end; ++k)
#pragma GCC unroll 8
    for (int r = 0; r < queries; ++r)
      if (k < sight.first + r)
        add(r, k);
#pragma GCC unroll 8
  for (int r = 0; r < queries; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      store(sums + r * sums_stride + v * kLanes, sum[r][v]);
}

// The same for any number of columns, in whole vectors.
template <int queries>
static inline void multiply_values(const float *weights, const float *value,
                                   int64_t stride, const Sight &sight,
                                   const float *factors, float *sums,
                                   int64_t columns) {
  int64_t d = 0;
  for (; d + kColumnVectors * kLanes <= columns; d += kColumnVectors * kLanes)
    multiply_values<queries, kColumnVectors>(weights, value + d, stride, sight,
                                             factors, sums + d, columns);
  for (; d + 2 * kLanes <= columns; d += 2 * kLanes)
    multiply_values<queries, 2>(weights, value + d, stride, sight, factors,
                                sums + d, columns);
  for (; d < columns; d += kLanes)
    multiply_values<queries, 1>(weights, value + d, stride, sight, factors,
                                sums + d, columns);
}

// sums += weights values: `rows` rows of sums, each of n weights that are
// `step` apart, with the rows of weights `row_step` apart.
template <int rows, int vectors>
static inline void add_weighted(const float *weights, int64_t row_step,
                                int64_t step, const float *values,
                                int64_t stride, int64_t n, float *sums,
                                int64_t sums_stride) {
  WidestFloats sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = load<WidestFloats>(sums + r * sums_stride + v * kLanes);
  for (int64_t i = 0; i < n; ++i) {
    WidestFloats lanes[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      lanes[v] = load<WidestFloats>(values + i * stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const WidestFloats weight = all_lanes(weights[r * row_step + i * step]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = multiply_add(weight, lanes[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      store(sums + r * sums_stride + v * kLanes, sum[r][v]);
}

// The same for any number of rows and of columns, in whole vectors.
template <int vectors>
static inline void add_weighted(const float *weights, int64_t row_step,
                                int64_t step, const float *values,
                                int64_t stride, int64_t n, float *sums,
                                int64_t rows, int64_t columns) {
  each_few<kQueriesAtOnce>(rows, [&]<int some>(int64_t r) {
    add_weighted<some, vectors>(weights + r * row_step, row_step, step, values,
                                stride, n, sums + r * columns, columns);
  });
}

static inline void add_weighted(const float *weights, int64_t row_step,
                                int64_t step, const float *values, int64_t n,
                                float *sums, int64_t rows, int64_t columns) {
  int64_t d = 0;
  for (; d + kColumnVectors * kLanes <= columns; d += kColumnVectors * kLanes)
    add_weighted<kColumnVectors>(weights, row_step, step, values + d, columns,
                                 n, sums + d, rows, columns);
  for (; d + 2 * kLanes <= columns; d += 2 * kLanes)
    add_weighted<2>(weights, row_step, step, values + d, columns, n, sums + d,
                    rows, columns);
  for (; d < columns; d += kLanes)
    add_weighted<1>(weights, row_step, step, values + d, columns, n, sums + d,
                    rows, columns);
}

} // namespace steelyard::STEELYARD_ISA
