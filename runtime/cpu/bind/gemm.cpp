#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"

namespace nb = nanobind;

namespace steelyard {

static void bind_packing(nb::module_ &m) {
  m.def(
      "pack_weight",
      [](const WeightArguments &weight, uintptr_t packed) {
        nb::gil_scoped_release release;
        const CompactWeight copy = weight_of(weight);
        pack_weight(copy, memory<uint8_t>(packed, copy.layout().size() == 0));
      },
      "Pack an FP4 copy.");
  m.def(
      "unpack_weight",
      [](uintptr_t packed, const WeightArguments &weight) {
        nb::gil_scoped_release release;
        const CompactWeight copy = weight_of(weight);
        const bool empty = copy.layout().size() == 0;
        unpack_weight(memory<const uint8_t>(packed, empty), copy);
      },
      "The copy that was packed.");
}

void bind_gemm(nb::module_ &m) {
  m.def(
      "qgemm",
      [](const OperandArguments &a, const CopyArguments &b,
         const MatrixArguments &bias, const MatrixArguments &accumulate,
         const MatrixArguments &out, int threads,
         const std::optional<EpilogueArguments> &epilogue) {
        nb::gil_scoped_release release;
        run_gemm({operand_of(a), copy_of(b),
                  result_of(out, bias, accumulate, epilogue)},
                 threads);
      },
      nb::arg("a"), nb::arg("b"), nb::arg("bias"), nb::arg("accumulate"),
      nb::arg("out"), nb::arg("threads"), nb::arg("epilogue") = nb::none(),
      "The product of a quantized copy or a matrix and a quantized copy, and "
      "addends, into `out`; none of its dims is 0.");
  bind_packing(m);
}

} // namespace steelyard
