#include "cpu/rows/add_rows.h"

#include "cpu/simd/simd.h"
#include "cpu/tiles/row_chunk.h"

namespace steelyard::STEELYARD_ISA {

static inline void add_values(const float *values, int64_t n,
                              float *__restrict out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] += values[j];
}

static inline void add_to_halves(const float *values, int64_t n, Dtype dtype,
                                 uint16_t *out) {
  float sums[kAddedColumnsOfTask];
  widen_row(out, dtype, n, sums);
  add_values(values, n, sums);
  store_row(sums, n, dtype, out);
}

// Adds columns [first, first + n) of a row.
static void add_chunk(const AddRowsCall &call, int64_t row, int64_t first,
                      int64_t n) {
  const Matrix &rows = call.rows;
  float buffer[kAddedColumnsOfTask];
  const int64_t at = call.numbers[row] * rows.columns + first;
  const float *values = row_chunk(rows, row, first, n, buffer);
  if (rows.dtype == Dtype::f32)
    add_values(values, n, static_cast<float *>(call.out) + at);
  else
    add_to_halves(values, n, rows.dtype,
                  static_cast<uint16_t *>(call.out) + at);
}

void add_rows(const AddRowsCall &call, int64_t begin, int64_t end) {
  const int64_t first = begin * kAddedColumnsOfTask;
  const int64_t last = smaller(end * kAddedColumnsOfTask, call.rows.columns);
  // Rows are far apart: each is looked for once.
  for (int64_t row = 0; row < call.rows.rows; ++row) {
    if (call.numbers[row] == call.skipped)
      continue;
    for (int64_t column = first; column < last; column += kAddedColumnsOfTask)
      add_chunk(call, row, column, smaller(kAddedColumnsOfTask, last - column));
  }
}

} // namespace steelyard::STEELYARD_ISA
