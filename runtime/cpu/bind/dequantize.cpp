#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"

namespace nb = nanobind;

namespace steelyard {

void bind_dequantize(nb::module_ &m) {
  m.def(
      "dequantize",
      [](int scheme, bool columnwise, uintptr_t codes, uintptr_t scales,
         uintptr_t amax, int64_t rows, int64_t columns, uintptr_t out,
         int dtype, int threads) {
        nb::gil_scoped_release release;
        run_dequantize(
            copy_of({scheme, columnwise, codes, scales, amax, rows, columns}),
            memory(out, is_empty(rows, columns)), dtype_of(dtype), threads);
      },
      "The values of a quantized copy as a contiguous matrix.");
}

} // namespace steelyard
