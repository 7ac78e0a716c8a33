// Sums and counts over plain float arrays, each in one pass.
//
// Arrays lie in order. Work is cut into blocks of a fixed size whose sums are
// added in order, so that no result depends on the number of threads.
#pragma once

#include <cstdint>

namespace steelyard {

// What quantizing did to values. The sums are over elements that are finite
// before and after.
struct ValueSums {
  double square_sum = 0, error_square_sum = 0;
  double saturated = 0, flushed = 0;
  double amax = 0; // NaN if a value is
  double nan_count = 0, inf_count = 0;
};

// `limit` is the largest magnitude that each element's scale can express; an
// element saturates above limit * (1 + slack), and an infinity always does.
ValueSums measure_values(const float *values, const float *decoded,
                         const float *limit, int64_t count, double slack,
                         int threads);

// The error of a product. The sums are over elements that are finite in both.
struct ProductSums {
  double square_sum = 0, error_square_sum = 0, max_error = 0;
  double computed_square_sum = 0, dot = 0;
  double underflows = 0; // 0 as computed, but not in high precision
  double not_finite = 0;
};

// `bias`, one value per column or null, is a part of what was computed.
ProductSums measure_product(const float *computed, const float *product,
                            const float *bias, int64_t rows, int64_t columns,
                            int threads);

// The sum over rows of (error . gradient)^2.
double measure_influence(const float *computed, const float *product,
                         const float *gradient, const float *bias, int64_t rows,
                         int64_t columns, int threads);

// How many elements have each code: adds to 256 counts, or to 16 where a byte
// holds two codes, the first in its low bits; the last of an odd row is none.
void count_codes(const uint8_t *codes, int64_t rows, int64_t columns,
                 bool nibbles, double *counts);

} // namespace steelyard
