#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"

namespace nb = nanobind;

namespace steelyard {

void bind_amax(nb::module_ &m) {
  m.def(
      "amax",
      [](const MatrixArguments &x, uintptr_t out, bool rht, bool per_row,
         int threads) {
        nb::gil_scoped_release release;
        const Matrix matrix = matrix_of(x);
        const int64_t size = per_row ? matrix.rows : 1;
        find_amax(matrix, memory<float>(out, size == 0), rht, per_row, threads);
      },
      "Largest magnitude of a matrix as float32: one, or one per row.");
}

} // namespace steelyard
