// From the sums of a tile to the output: factors, addends, epilogue,
// rounding. Included by kernel sources only.
#pragma once

#include "cpu/gemm/tiles.h"

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
static bool scales_in_float(const GemmCall &call) {
  const double factor = call.a.factor * call.b.factor;
  const double magnitude = factor < 0 ? -factor : factor;
  return call.panels != Panels::f64 && !call.a.factors && !call.b.factors &&
         !call.addends[0].data && !call.addends[1].data &&
         magnitude >= 0x1p-126 && magnitude <= kFloatMax;
}

// factors * sums + addends, in float64 so that only the result overflows.
template <class T>
static void finish_row(const GemmCall &call, int64_t row, int64_t column,
                       int64_t n, const T *sums, float *out) {
  const double row_factor =
      call.a.factors ? call.a.factors[row] : call.a.factor;
  double values[kMostTileColumns];
  for (int64_t j = 0; j < n; ++j)
    values[j] =
        sums[j] * (row_factor * (call.b.factors ? call.b.factors[column + j]
                                                : call.b.factor));
  for (const Matrix &addend : call.addends)
    if (addend.data)
      add_row(addend, row, column, n, values);
  for (int64_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(values[j]);
}

static void *element_of(void *data, Dtype dtype, int64_t index) {
  return static_cast<char *>(data) + index * (dtype == Dtype::f32 ? 4 : 2);
}

// From what the epilogue is given to the output.
static void store_values(const GemmCall &call, int64_t row, int64_t column,
                         int64_t n, float *values) {
  if (call.preactivation)
    store_row(values, n, call.out_dtype,
              element_of(call.preactivation, call.out_dtype,
                         row * call.preactivation_stride + column));
  activate(call.epilogue, values, n);
  if (call.residual.data)
    add_row(call.residual, row, column, n, values);
  store_row(
      values, n, call.out_dtype,
      element_of(call.out, call.out_dtype, row * call.out_stride + column));
}

template <class T>
static void store_tile(const GemmCall &call, const OutputTile<T> &tile) {
  const int64_t column = call.column + tile.column;
  const bool in_float = scales_in_float(call);
  const float factor = static_cast<float>(call.a.factor * call.b.factor);
  float values[kMostTileColumns];
  for (int64_t i = 0; i < tile.rows; ++i) {
    const T *sums = tile.sums + i * call.tile_columns;
    const int64_t row = call.row + tile.row + i;
    if (in_float)
      for (int64_t j = 0; j < tile.columns; ++j)
        values[j] = static_cast<float>(sums[j]) * factor;
    else
      finish_row(call, row, column, tile.columns, sums, values);
    store_values(call, row, column, tile.columns, values);
  }
}

} // namespace steelyard::STEELYARD_ISA
