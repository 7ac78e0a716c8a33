#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"
#include "cpu/grouped/grouped.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// The address of where each group ends, and how many there are.
using EndsArguments = std::tuple<uintptr_t, int64_t>;

GroupEnds ends_of(const EndsArguments &arguments, int64_t rows) {
  const auto &[address, count] = arguments;
  const GroupEnds ends{memory<const int32_t>(address, count == 0), count};
  require(ends.fit(rows), "the ends of groups must not decrease, and must be "
                          "from 0 to the number of rows");
  return ends;
}

void bind_quantize_groups(nb::module_ &m) {
  m.def(
      "grouped_quantize",
      [](const MatrixArguments &x, const EndsArguments &ends,
         int64_t group_stride, const std::optional<TargetArguments> &row,
         const std::optional<TargetArguments> &col, uintptr_t scale,
         uint64_t seed, uint64_t offset, int threads) {
        nb::gil_scoped_release release;
        QuantizeArguments arguments{matrix_of(x)};
        const GroupEnds groups = group_stride
                                     ? GroupEnds{nullptr, std::get<1>(ends)}
                                     : ends_of(ends, arguments.x.rows);
        arguments.row = target_of(row, arguments.x, false);
        arguments.col = target_of(col, arguments.x, true);
        arguments.scale = pointer<const float>(scale);
        arguments.seed = seed;
        arguments.offset = offset;
        run_grouped_quantize(arguments, groups, group_stride, threads);
      },
      nb::arg("x"), nb::arg("ends"), nb::arg("group_stride"),
      nb::arg("row").none(), nb::arg("col").none(), nb::arg("scale"),
      nb::arg("seed"), nb::arg("offset"), nb::arg("threads"),
      "Quantize each group of rows, or with a group stride each matrix of a "
      "stack, as a matrix of its own.");
}

} // namespace

void bind_grouped(nb::module_ &m) {
  bind_quantize_groups(m);
  m.def(
      "grouped_qgemm",
      [](const OperandArguments &a, const CopyArguments &b, bool b_is_grouped,
         const EndsArguments &ends, const MatrixArguments &out, int threads) {
        nb::gil_scoped_release release;
        const GroupedGemmArguments arguments{operand_of(a), copy_of(b),
                                             b_is_grouped, matrix_of(out)};
        const auto *copy = std::get_if<StoredCopy>(&arguments.a);
        const int64_t rows =
            copy ? copy->M : std::get<Matrix>(arguments.a).rows;
        run_grouped_gemm(arguments, ends_of(ends, rows), threads);
      },
      nb::arg("a"), nb::arg("b"), nb::arg("b_is_grouped"), nb::arg("ends"),
      nb::arg("out"), nb::arg("threads"),
      "One product for each group of rows of `a`, with the matrix of `b` that "
      "belongs to it or, where both are in groups, with the same rows of `b`.");
}

} // namespace steelyard
