// From the sums of a tile to the output: factors, addends, epilogue,
// rounding. Included by kernel sources only.
#pragma once

#include "cpu/gemm/tiles.h"
#include "cpu/produce/activate.h"

namespace steelyard::STEELYARD_ISA {

template <class T>
static void add_row(const Matrix &addend, int64_t row, int64_t column,
                    int64_t n, T *sum) {
  const int64_t first = row * addend.row_stride + column * addend.column_stride;
  if (addend.dtype == Dtype::f32) {
    const float *values = static_cast<const float *>(addend.data) + first;
    for (int64_t j = 0; j < n; ++j)
      sum[j] += values[j * addend.column_stride];
    return;
  }
  const uint16_t *halves = static_cast<const uint16_t *>(addend.data) + first;
  for (int64_t j = 0; j < n; ++j)
    sum[j] += widen(halves[j * addend.column_stride], addend.dtype);
}

// One factor for all that float32 holds well, and nothing to add.
static bool scales_in_float(const GemmProblem &problem, Panels panels) {
  const double factor = problem.a.factor * problem.b.factor;
  const double magnitude = factor < 0 ? -factor : factor;
  return panels != Panels::f64 && !problem.a.factors && !problem.b.factors &&
         !problem.result.bias.data && !problem.result.accumulate.data &&
         magnitude >= 0x1p-126 && magnitude <= kFloatMax;
}

// factors * sums + addends, in float64 so that only the result overflows.
template <class T>
static void finish_row(const GemmProblem &problem, int64_t row, int64_t column,
                       int64_t n, const T *sums, float *out) {
  const double factor = problem.a.factor * problem.b.factor;
  const double row_factor =
      problem.a.factors ? factor * problem.a.factors[row] : factor;
  double values[kMostTileColumns];
  for (int64_t j = 0; j < n; ++j)
    values[j] = sums[j] * (problem.b.factors
                               ? row_factor * problem.b.factors[column + j]
                               : row_factor);
  const GemmResult &result = problem.result;
  if (result.bias.data)
    add_row(result.bias, row, column, n, values);
  if (result.accumulate.data)
    add_row(result.accumulate, row, column, n, values);
  for (int64_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(values[j]);
}

// Rounds a part of a row to the dtype of an output.
static void store_part(const Matrix &out, int64_t row, int64_t column,
                       int64_t n, const float *values) {
  const int64_t index = row * out.row_stride + column;
  char *data = static_cast<char *>(const_cast<void *>(out.data));
  store_row(values, n, out.dtype, data + index * item_size(out.dtype));
}

// From what the epilogue is given to the output.
static void store_values(const GemmResult &result, int64_t row, int64_t column,
                         int64_t n, float *values) {
  if (result.preactivation.data)
    store_part(result.preactivation, row, column, n, values);
  activate(result.epilogue, values, n);
  if (result.residual.data)
    add_row(result.residual, row, column, n, values);
  store_part(result.out, row, column, n, values);
}

template <class T>
static void store_tile(const GemmCall &call, const OutputTile<T> &tile) {
  const int64_t column = call.at.column + tile.column;
  const bool in_float = scales_in_float(call.problem, call.plan.panels);
  const float factor =
      static_cast<float>(call.problem.a.factor * call.problem.b.factor);
  float values[kMostTileColumns];
  for (int64_t i = 0; i < tile.rows; ++i) {
    const T *sums = tile.sums + i * call.plan.tile_columns;
    const int64_t row = call.at.row + tile.row + i;
    if (in_float)
      for (int64_t j = 0; j < tile.columns; ++j)
        values[j] = static_cast<float>(sums[j]) * factor;
    else
      finish_row(call.problem, row, column, tile.columns, sums, values);
    store_values(call.problem.result, row, column, tile.columns, values);
  }
}

} // namespace steelyard::STEELYARD_ISA
