#include "cpu/measure/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/threads/thread_pool.h"

namespace steelyard {

static constexpr int64_t kBlock = 1 << 14;

// The sums of blocks of at most `kBlock` of `count` tasks, added in order.
template <class Sums, class F>
static Sums sum_blocks(int64_t count, int64_t block, int threads, const F &f) {
  const int64_t blocks = (count + block - 1) / block;
  std::vector<Sums> parts(blocks);
  parallel_for(blocks, 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parts[i] = f(i * block, std::min(count, (i + 1) * block));
  });
  Sums total{};
  for (const Sums &part : parts)
    total.add(part);
  return total;
}

static bool is_finite(float x) {
  return std::fabs(x) <= std::numeric_limits<float>::max();
}

// NaN wins.
static double larger(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

namespace {

struct Values : ValueSums {
  void add(const Values &other) {
    square_sum += other.square_sum;
    error_square_sum += other.error_square_sum;
    saturated += other.saturated;
    flushed += other.flushed;
    amax = larger(amax, other.amax);
    nan_count += other.nan_count;
    inf_count += other.inf_count;
  }
};

struct Product : ProductSums {
  void add(const Product &other) {
    square_sum += other.square_sum;
    error_square_sum += other.error_square_sum;
    max_error = larger(max_error, other.max_error);
    computed_square_sum += other.computed_square_sum;
    dot += other.dot;
    underflows += other.underflows;
    not_finite += other.not_finite;
  }
};

struct Influence {
  double sum = 0;
  void add(const Influence &other) { sum += other.sum; }
};

} // namespace

// Lanes that do not depend on each other let the compiler use vectors without
// changing the order of any sum.
static constexpr int kLanes = 8;

static Values sum_values(const float *values, const float *decoded,
                         const float *limit, int64_t count, float slack) {
  double squares[kLanes] = {}, errors[kLanes] = {};
  int32_t saturated[kLanes] = {}, flushed[kLanes] = {}, finite[kLanes] = {},
          nans[kLanes] = {};
  float amax[kLanes] = {};
  const auto add = [&](int64_t i, int lane) {
    const float x = values[i], y = decoded[i], size = std::fabs(x);
    const bool both = is_finite(x) & is_finite(y);
    const double value = both ? x : 0.0F, other = both ? y : 0.0F;
    squares[lane] += value * value;
    errors[lane] += (other - value) * (other - value);
    const bool above = (limit[i] > 0) & (size > limit[i] * slack);
    saturated[lane] += above | (size > std::numeric_limits<float>::max());
    flushed[lane] += (x != 0) & (y == 0);
    finite[lane] += is_finite(x);
    nans[lane] += x != x;
    amax[lane] = size > amax[lane] ? size : amax[lane];
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      add(i + lane, lane);
  for (; i < count; ++i)
    add(i, static_cast<int>(i % kLanes));
  Values sums{};
  double finite_count = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.square_sum += squares[lane];
    sums.error_square_sum += errors[lane];
    sums.saturated += saturated[lane];
    sums.flushed += flushed[lane];
    sums.nan_count += nans[lane];
    finite_count += finite[lane];
    sums.amax = std::max(sums.amax, static_cast<double>(amax[lane]));
  }
  sums.inf_count = static_cast<double>(count) - finite_count - sums.nan_count;
  if (sums.nan_count > 0)
    sums.amax = std::numeric_limits<double>::quiet_NaN();
  return sums;
}

ValueSums measure_values(const float *values, const float *decoded,
                         const float *limit, int64_t count, double slack,
                         int threads) {
  const auto factor = static_cast<float>(1 + slack);
  return sum_blocks<Values>(
      count, kBlock, threads, [&](int64_t begin, int64_t end) {
        return sum_values(values + begin, decoded + begin, limit + begin,
                          end - begin, factor);
      });
}

// Rows in a block: as many as it takes, at least one.
static int64_t block_rows(int64_t columns) {
  return std::max<int64_t>(1, kBlock / std::max<int64_t>(1, columns));
}

static void add_row(const float *computed, const float *product,
                    const float *bias, int64_t columns, Product &sums) {
  double squares[kLanes] = {}, errors[kLanes] = {}, own[kLanes] = {},
         dots[kLanes] = {}, largest[kLanes] = {};
  int32_t underflows[kLanes] = {}, finite[kLanes] = {};
  const auto add = [&](int64_t i, int lane) {
    const float y = computed[i], p = product[i];
    const bool both = is_finite(y) & is_finite(p);
    const double added = bias == nullptr ? 0.0 : bias[i];
    const double found = both ? y - added : 0.0, wanted = both ? p : 0.0;
    const double error = found - wanted, size = std::fabs(error);
    squares[lane] += wanted * wanted;
    errors[lane] += error * error;
    own[lane] += found * found;
    dots[lane] += found * wanted;
    largest[lane] = size > largest[lane] ? size : largest[lane];
    underflows[lane] += (found == 0) & (wanted != 0);
    finite[lane] += both;
  };
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      add(i + lane, lane);
  for (; i < columns; ++i)
    add(i, static_cast<int>(i % kLanes));
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.square_sum += squares[lane];
    sums.error_square_sum += errors[lane];
    sums.computed_square_sum += own[lane];
    sums.dot += dots[lane];
    sums.max_error = std::max(sums.max_error, largest[lane]);
    sums.underflows += underflows[lane];
    sums.not_finite -= finite[lane];
  }
  sums.not_finite += static_cast<double>(columns);
}

ProductSums measure_product(const float *computed, const float *product,
                            const float *bias, int64_t rows, int64_t columns,
                            int threads) {
  return sum_blocks<Product>(
      rows, block_rows(columns), threads, [&](int64_t begin, int64_t end) {
        Product sums{};
        for (int64_t row = begin; row < end; ++row)
          add_row(computed + row * columns, product + row * columns, bias,
                  columns, sums);
        return sums;
      });
}

double measure_influence(const float *computed, const float *product,
                         const float *gradient, const float *bias, int64_t rows,
                         int64_t columns, int threads) {
  const auto sums = sum_blocks<Influence>(
      rows, block_rows(columns), threads, [&](int64_t begin, int64_t end) {
        Influence part{};
        for (int64_t row = begin; row < end; ++row) {
          double dot = 0;
          for (int64_t i = 0; i < columns; ++i) {
            const int64_t at = row * columns + i;
            const double added = bias == nullptr ? 0.0 : bias[i];
            dot += (computed[at] - added - product[at]) *
                   static_cast<double>(gradient[at]);
          }
          part.sum += dot * dot;
        }
        return part;
      });
  return sums.sum;
}

void count_codes(const uint8_t *codes, int64_t rows, int64_t columns,
                 bool nibbles, double *counts) {
  // Four tables, because equal codes often follow each other.
  std::vector<int64_t> tables(4 * 256);
  const int64_t bytes = nibbles ? (columns + 1) / 2 : columns;
  const int64_t count = rows * bytes;
  for (int64_t i = 0; i < count; ++i)
    ++tables[(i & 3) * 256 + codes[i]];
  for (int code = 0; code < 256; ++code) {
    double found = 0;
    for (int table = 0; table < 4; ++table)
      found += static_cast<double>(tables[table * 256 + code]);
    if (!nibbles) {
      counts[code] += found;
      continue;
    }
    counts[code & 15] += found;
    counts[code >> 4] += found;
  }
  if (nibbles && columns % 2 != 0)
    for (int64_t row = 0; row < rows; ++row)
      --counts[codes[(row + 1) * bytes - 1] >> 4];
}

} // namespace steelyard
