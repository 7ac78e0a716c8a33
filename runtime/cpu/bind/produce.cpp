#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"

namespace nb = nanobind;

namespace steelyard {

void bind_produce(nb::module_ &m) {
  m.def(
      "produce",
      [](const MatrixArguments &out, const ProducerArguments &arguments,
         uintptr_t amax, int threads) {
        nb::gil_scoped_release release;
        const Matrix target = matrix_of(out);
        run_produce(target, producer_of(arguments, target.dtype),
                    pointer<float>(amax), threads);
      },
      "Write what a producer makes of its inputs into a contiguous matrix, and "
      "raise a float32 of 0 to its amax.");
}

} // namespace steelyard
