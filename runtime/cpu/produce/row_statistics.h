// What norms know of a row. Sums have one order on every instruction set: 32
// lanes of float32 over 512 elements, then float64. Included by kernel sources
// only.
#pragma once

#include "cpu/produce/produce.h"
#include "cpu/simd/simd.h"
#include "cpu/tiles/row_chunk.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int64_t kSumLanes = 32, kSumChunk = 512;
static constexpr int64_t kSumWidth = sizeof(WidestFloats) / sizeof(float);
static constexpr int64_t kSumVectors = kSumLanes / kSumWidth;

struct Value {
  template <class T> void operator()(T &) const {}
};

struct CenteredSquare {
  float mean, mean_rest;
  template <class T> void operator()(T &value) const {
    value = (value - mean) - mean_rest;
    value *= value;
  }
};

// The sum of `term` over some elements, lane by lane.
template <class Term>
static inline void sum_chunk(const float *values, int64_t n, const Term &term,
                             float (&lanes)[kSumLanes]) {
  WidestFloats sums[kSumVectors] = {};
  const int64_t whole = n / kSumLanes * kSumLanes;
  for (int64_t j = 0; j < whole; j += kSumLanes)
#pragma GCC unroll 8
    for (int64_t v = 0; v < kSumVectors; ++v) {
      auto terms = load<WidestFloats>(values + j + v * kSumWidth);
      term(terms);
      sums[v] += terms;
    }
  std::memcpy(lanes, sums, sizeof lanes);
  for (int64_t j = whole; j < n; ++j) {
    float value = values[j];
    term(value);
    lanes[j - whole] += value;
  }
}

// The sum of all lanes: halves are added to each other.
static inline double sum_of_lanes(double (&totals)[kSumLanes]) {
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l)
      totals[l] += totals[l + half];
  return totals[0];
}

template <class Term>
static inline double sum_of_row(const Matrix &x, int64_t row,
                                const Term &term) {
  alignas(64) float buffer[kSumChunk], lanes[kSumLanes];
  double totals[kSumLanes] = {};
  for (int64_t first = 0; first < x.columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, x.columns - first);
    sum_chunk(row_chunk(x, row, first, n, buffer), n, term, lanes);
    for (int64_t l = 0; l < kSumLanes; ++l)
      totals[l] += lanes[l];
  }
  return sum_of_lanes(totals);
}

template <class Term>
static inline double mean_of_row(const Matrix &x, int64_t row,
                                 const Term &term) {
  return sum_of_row(x, row, term) / static_cast<double>(x.columns);
}

// The squares of an RMS norm are those around a mean of zero.
static inline RowStatistics row_statistics(const Matrix &x, int64_t row,
                                           bool centered, double epsilon) {
  RowStatistics found{0.0f, 0.0f, 0.0f};
  if (centered) {
    const double mean = mean_of_row(x, row, Value{});
    found.mean = static_cast<float>(mean);
    found.mean_rest = static_cast<float>(mean - found.mean);
  }
  const double square =
      mean_of_row(x, row, CenteredSquare{found.mean, found.mean_rest});
  found.scale = static_cast<float>(1.0 / __builtin_sqrt(square + epsilon));
  return found;
}

} // namespace steelyard::STEELYARD_ISA
