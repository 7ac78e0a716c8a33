#include "cpu/bind/bindings.h"

#include "cpu/operations.h"

namespace nb = nanobind;

namespace steelyard {

void bind_dequantize(nb::module_ &m) {
  m.def(
      "dequantize",
      [](int scheme, bool columnwise, uintptr_t codes, uintptr_t scales,
         uintptr_t amax, int64_t rows, int64_t columns, uintptr_t out,
         int dtype, int threads) {
        nb::gil_scoped_release release;
        run_dequantize({{scheme},
                        columnwise,
                        reinterpret_cast<uint8_t *>(codes),
                        reinterpret_cast<uint8_t *>(scales),
                        reinterpret_cast<float *>(amax),
                        rows,
                        columns},
                       reinterpret_cast<void *>(out), static_cast<Dtype>(dtype),
                       threads);
      },
      "The values of a quantized copy as a contiguous matrix.");
}

} // namespace steelyard
