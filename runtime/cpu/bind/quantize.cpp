#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"

namespace nb = nanobind;

namespace steelyard {

void bind_quantize(nb::module_ &m) {
  m.def(
      "quantize",
      [](const MatrixArguments &x, const std::optional<TargetArguments> &row,
         const std::optional<TargetArguments> &col, uintptr_t scale,
         uint64_t seed, uint64_t offset, int threads,
         const std::optional<ProducerArguments> &producer) {
        nb::gil_scoped_release release;
        QuantizeArguments arguments{matrix_of(x, !producer)};
        arguments.row = target_of(row, arguments.x, false);
        arguments.col = target_of(col, arguments.x, true);
        arguments.scale = pointer<const float>(scale);
        require_scale(arguments);
        arguments.seed = seed;
        arguments.offset = offset;
        std::optional<Producer> made;
        if (producer)
          arguments.producer =
              &made.emplace(producer_of(*producer, arguments.x.dtype));
        run_quantize(arguments, threads);
      },
      nb::arg("x"), nb::arg("row").none(), nb::arg("col").none(),
      nb::arg("scale"), nb::arg("seed"), nb::arg("offset"), nb::arg("threads"),
      nb::arg("producer") = nb::none(),
      "Quantize a matrix, or what a producer makes, into a rowwise copy, a "
      "columnwise copy or both.");
}

} // namespace steelyard
