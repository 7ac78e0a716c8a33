#include "cpu/bind/bindings.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "cpu/gemm/packed_weight.h"
#include "cpu/operations.h"

namespace nb = nanobind;

namespace steelyard {

// scheme, columnwise, codes, scales, second level (or 0), M, N; of a packed
// weight only its memory, as the codes
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

// codes, scales, amax, columns, k, whether each column has its own amax
using WeightArguments =
    std::tuple<uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t, bool>;

static CompactWeight weight_of(const WeightArguments &arguments) {
  const auto &[codes, scales, amax, columns, k, row_scaled] = arguments;
  return {reinterpret_cast<uint8_t *>(codes),
          reinterpret_cast<uint8_t *>(scales),
          reinterpret_cast<float *>(amax),
          columns,
          k,
          row_scaled};
}

static void bind_packing(nb::module_ &m) {
  m.def(
      "packed_size",
      [](int64_t columns, int64_t k, bool row_scaled) {
        return PackedLayout::of(columns, k, row_scaled).size();
      },
      "Bytes of a packed NVFP4 weight.");
  m.def(
      "pack_weight",
      [](const WeightArguments &weight, uintptr_t packed) {
        nb::gil_scoped_release release;
        pack_weight(weight_of(weight), reinterpret_cast<uint8_t *>(packed));
      },
      "Pack a rowwise NVFP4 copy.");
  m.def(
      "unpack_weight",
      [](uintptr_t packed, const WeightArguments &weight) {
        nb::gil_scoped_release release;
        unpack_weight(reinterpret_cast<const uint8_t *>(packed),
                      weight_of(weight));
      },
      "The copy that was packed.");
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
  bind_packing(m);
}

} // namespace steelyard
