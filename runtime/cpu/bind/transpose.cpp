#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"

namespace nb = nanobind;

namespace steelyard {

void bind_transpose(nb::module_ &m) {
  m.def(
      "transpose",
      [](const CopyArguments &from, const CopyArguments &to, int threads) {
        nb::gil_scoped_release release;
        run_transpose(copy_of(from), copy_of(to), threads);
      },
      "The copy of the other usage, from the codes.");
}

} // namespace steelyard
