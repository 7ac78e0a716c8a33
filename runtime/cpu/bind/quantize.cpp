#include "cpu/bind/bindings.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "cpu/bind/producer_arguments.h"
#include "cpu/operations.h"

namespace nb = nanobind;

namespace steelyard {

// scheme bits, epsilon, codes, scales, amax, whether the amax is given, whether
// a rowwise copy of x is made as the columnwise copy of its transpose
using CopyArguments =
    std::tuple<int, float, uintptr_t, uintptr_t, uintptr_t, bool, bool>;

static TargetCopy target(const CopyArguments &arguments, const Matrix &x,
                         bool columnwise) {
  const auto &[bits, epsilon, codes, scales, amax, amax_given, swapped] =
      arguments;
  TargetCopy copy{};
  copy.scheme = {bits};
  copy.columnwise = columnwise;
  copy.codes = reinterpret_cast<uint8_t *>(codes);
  copy.scales = reinterpret_cast<uint8_t *>(scales);
  copy.amax = reinterpret_cast<float *>(amax);
  copy.M = x.rows;
  copy.N = x.columns;
  copy.epsilon = epsilon;
  copy.amax_given = amax_given;
  copy.swapped = swapped;
  return copy;
}

void bind_quantize(nb::module_ &m) {
  m.def(
      "quantize",
      [](const MatrixArguments &x, const std::optional<CopyArguments> &row,
         const std::optional<CopyArguments> &col, uintptr_t scale,
         uint64_t seed, uint64_t offset, int threads,
         const std::optional<ProducerArguments> &arguments) {
        nb::gil_scoped_release release;
        const Matrix source = matrix(x);
        std::optional<TargetCopy> copies[2];
        if (row)
          copies[0] = target(*row, source, false);
        if (col)
          copies[1] = target(*col, source, true);
        std::optional<Producer> producer;
        if (arguments)
          producer = producer_of(*arguments, source.dtype);
        run_quantize(source, copies[0] ? &*copies[0] : nullptr,
                     copies[1] ? &*copies[1] : nullptr,
                     {reinterpret_cast<const float *>(scale), seed, offset,
                      producer ? &*producer : nullptr},
                     threads);
      },
      nb::arg("x"), nb::arg("row").none(), nb::arg("col").none(),
      nb::arg("scale"), nb::arg("seed"), nb::arg("offset"), nb::arg("threads"),
      nb::arg("producer") = nb::none(),
      "Quantize a matrix, or what a producer makes, into a rowwise copy, a "
      "columnwise copy or both.");
}

} // namespace steelyard
