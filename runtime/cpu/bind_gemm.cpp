#include "bindings.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "runs.h"

namespace nb = nanobind;

namespace steelyard {

// scheme, columnwise, codes, scales, second level (or 0), M, N
using OperandArguments =
    std::tuple<int, bool, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t>;

// activation, residual, preactivation
using EpilogueArguments = std::tuple<int, MatrixArguments, MatrixArguments>;

static StoredCopy operand(const OperandArguments &arguments) {
  const auto &[bits, columnwise, codes, scales, second, M, N] = arguments;
  return {{bits},
          columnwise,
          reinterpret_cast<uint8_t *>(codes),
          reinterpret_cast<uint8_t *>(scales),
          reinterpret_cast<float *>(second),
          M,
          N};
}

static void set_epilogue(const EpilogueArguments &arguments, GemmCall &call) {
  const auto &[activation, residual, preactivation] = arguments;
  const Matrix kept = matrix(preactivation);
  call.epilogue = static_cast<Activation>(activation);
  call.residual = matrix(residual);
  call.preactivation = const_cast<void *>(kept.data);
  call.preactivation_stride = kept.row_stride;
}

void bind_gemm(nb::module_ &m) {
  m.def(
      "qgemm",
      [](const OperandArguments &a, const OperandArguments &b,
         const MatrixArguments &bias, const MatrixArguments &accumulate,
         const MatrixArguments &out, int threads,
         const std::optional<EpilogueArguments> &epilogue) {
        nb::gil_scoped_release release;
        const Matrix target = matrix(out);
        GemmCall call{};
        call.addends[0] = matrix(bias);
        call.addends[1] = matrix(accumulate);
        call.out = const_cast<void *>(target.data);
        call.out_dtype = target.dtype;
        call.out_stride = target.row_stride;
        if (epilogue)
          set_epilogue(*epilogue, call);
        run_gemm(operand(a), operand(b), call, threads);
      },
      nb::arg("a"), nb::arg("b"), nb::arg("bias"), nb::arg("accumulate"),
      nb::arg("out"), nb::arg("threads"), nb::arg("epilogue") = nb::none(),
      "The product of two quantized copies, and addends, into `out`; none of "
      "its dims is 0.");
}

} // namespace steelyard
