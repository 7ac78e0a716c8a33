#include "cpu/bind/bindings.h"

#include <algorithm>

#include "cpu/bind/arguments.h"
#include "cpu/quantize/amax.h"

namespace nb = nanobind;

namespace steelyard {

static void amax(const Matrix &x, uint32_t *out, int64_t size, bool rht,
                 bool per_row, int threads) {
  AmaxCall call{x, {}, nullptr, nullptr, nullptr, nullptr};
  (rht ? call.transformed : per_row ? call.row : call.tensor) = out;
  std::fill_n(out, size, 0);
  run_amax(call, threads);
  canonicalize_nan(out, size);
}

void bind_amax(nb::module_ &m) {
  m.def(
      "amax",
      [](const MatrixArguments &x, uintptr_t out, bool rht, bool per_row,
         int threads) {
        nb::gil_scoped_release release;
        const Matrix matrix = matrix_of(x);
        const int64_t size = per_row ? matrix.rows : 1;
        amax(matrix, memory<uint32_t>(out, size == 0), size, rht, per_row,
             threads);
      },
      "Largest magnitude of a matrix as float32: one, or one per row.");
}

} // namespace steelyard
