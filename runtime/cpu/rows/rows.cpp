#include "cpu/rows/rows.h"

#include "cpu/elementwise/functions.h"
#include "cpu/produce/row_statistics.h"

namespace steelyard::STEELYARD_ISA {

// Writes values from one of the result on.
static void store_values(const float *values, int64_t n, const RowsCall &call,
                         int64_t first) {
  const int64_t size = item_size(call.dtype);
  store_row(values, n, call.dtype,
            static_cast<char *>(call.out) + first * size);
}

// NaN if one is among them.
static float largest_of_row(const Matrix &x, int64_t row) {
  alignas(64) float buffer[kSumChunk], largest[kSumLanes];
  for (float &one : largest)
    one = -__builtin_inff();
  bool is_number = true;
  for (int64_t first = 0; first < x.columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, x.columns - first);
    const float *values = row_chunk(x, row, first, n, buffer);
    for (int64_t j = 0; j < n; j += kSumLanes)
      for (int64_t l = 0; l < smaller(kSumLanes, n - j); ++l) {
        const float value = values[j + l];
        largest[l] = value > largest[l] ? value : largest[l];
        is_number &= value == value;
      }
  }
  float found = largest[0];
  for (const float one : largest)
    found = one > found ? one : found;
  return is_number ? found : float_of(0x7fc00000);
}

static void powers_of(const float *values, int64_t n, float largest,
                      float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] = exponential(values[j] - largest);
}

static void softmax_of_row(const RowsCall &call, int64_t row) {
  alignas(64) float buffer[kSumChunk], powers[kSumChunk], lanes[kSumLanes];
  const Matrix &x = call.x;
  const float largest = largest_of_row(x, row);
  double totals[kSumLanes] = {};
  for (int64_t first = 0; first < x.columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, x.columns - first);
    powers_of(row_chunk(x, row, first, n, buffer), n, largest, powers);
    sum_chunk(powers, n, Value{}, lanes);
    for (int64_t l = 0; l < kSumLanes; ++l)
      totals[l] += lanes[l];
  }
  const auto share = static_cast<float>(1 / sum_of_lanes(totals));
  // Powers are computed again: rows may be longer than any buffer.
  for (int64_t first = 0; first < x.columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, x.columns - first);
    powers_of(row_chunk(x, row, first, n, buffer), n, largest, powers);
    for (int64_t j = 0; j < n; ++j)
      powers[j] *= share;
    store_values(powers, n, call, row * x.columns + first);
  }
}

void rows(const RowsCall &call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    softmax_of_row(call, row);
}

} // namespace steelyard::STEELYARD_ISA
