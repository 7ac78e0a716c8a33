#include "cpu/measure/measure.h"

#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"

namespace nb = nanobind;

namespace steelyard {

static nb::tuple measured_values(uintptr_t values, uintptr_t decoded,
                                 uintptr_t limit, int64_t count, double slack,
                                 int threads) {
  require(count >= 0, "sizes must not be negative");
  const bool empty = count == 0;
  ValueSums sums;
  {
    nb::gil_scoped_release release;
    sums = measure_values(
        memory<const float>(values, empty), memory<const float>(decoded, empty),
        memory<const float>(limit, empty), count, slack, threads);
  }
  return nb::make_tuple(sums.square_sum, sums.error_square_sum, sums.saturated,
                        sums.flushed, sums.amax, sums.nan_count,
                        sums.inf_count);
}

static nb::tuple measured_product(uintptr_t computed, uintptr_t product,
                                  uintptr_t bias, int64_t rows, int64_t columns,
                                  int threads) {
  const bool empty = is_empty(rows, columns);
  ProductSums sums;
  {
    nb::gil_scoped_release release;
    sums = measure_product(memory<const float>(computed, empty),
                           memory<const float>(product, empty),
                           reinterpret_cast<const float *>(bias), rows, columns,
                           threads);
  }
  return nb::make_tuple(sums.square_sum, sums.error_square_sum, sums.max_error,
                        sums.computed_square_sum, sums.dot, sums.underflows,
                        sums.not_finite);
}

void bind_measure(nb::module_ &m) {
  m.def("measure_values", &measured_values,
        "Sums and counts over values and what they are decoded to.");
  m.def("measure_product", &measured_product,
        "Sums and counts over a product and the same in high precision.");
  m.def(
      "measure_influence",
      [](uintptr_t computed, uintptr_t product, uintptr_t gradient,
         uintptr_t bias, int64_t rows, int64_t columns, int threads) {
        const bool empty = is_empty(rows, columns);
        nb::gil_scoped_release release;
        return measure_influence(memory<const float>(computed, empty),
                                 memory<const float>(product, empty),
                                 memory<const float>(gradient, empty),
                                 reinterpret_cast<const float *>(bias), rows,
                                 columns, threads);
      },
      "The sum over rows of the squared product of error and gradient.");
  m.def(
      "count_codes",
      [](uintptr_t codes, int64_t rows, int64_t columns, bool nibbles,
         uintptr_t counts) {
        const bool empty = is_empty(rows, columns);
        nb::gil_scoped_release release;
        if (!empty)
          count_codes(memory<const uint8_t>(codes, empty), rows, columns,
                      nibbles, memory<double>(counts, false));
      },
      "Adds to counts how many elements have each code.");
}

} // namespace steelyard
