// How Python describes its arguments: tuples of plain numbers, and what of
// operations.h each becomes. Every order of such a tuple is in this file.
//
// Tensors come as integers (data_ptr), shapes and strides: an ndarray argument
// costs twenty times as much. Python has checked every one of them, except that
// of what a compiled program passes, torch has checked shapes and dtypes only.
// What numbers alone can tell is checked here: sizes, and that there is memory.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "cpu/gemm/packed_weight.h"
#include "cpu/operations.h"
#include "cpu/produce/produce.h"

namespace steelyard {

// Becomes a ConstraintError of Python.
struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline void require(bool holds, const char *message) {
  if (!holds) [[unlikely]]
    throw ArgumentError(message);
}

// An address, 0 for null.
template <class T = void> T *pointer(uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

// No process has memory below this address; a tensor whose memory was freed is
// at 0, and a view of it at its offset.
inline constexpr uintptr_t kFirstAddress = 1 << 16;

template <class T = void> T *memory(uintptr_t address, bool is_empty = false) {
  require(is_empty || address >= kFirstAddress,
          "tensors must have memory of their own, got one without any: freed, "
          "or standing for zeros or for other tensors; pass a tensor that "
          "holds its values");
  return pointer<T>(address);
}

// Whether a matrix of these sizes is empty.
inline bool is_empty(int64_t rows, int64_t columns) {
  require(rows >= 0 && columns >= 0, "sizes must not be negative");
  return rows == 0 || columns == 0;
}

inline Dtype dtype_of(int number) {
  require(number >= 0 && number < static_cast<int>(std::size(kDtypeNames)),
          "a dtype must be the number of one in dtype_names");
  return static_cast<Dtype>(number);
}

inline SchemeBits scheme_of(int bits) {
  const bool known =
      bits >= 0 && bits < 1 << (kDivisorField.shift + 1) &&
      kElementField.of(bits) <= static_cast<int>(Element::e2m1) &&
      kFamilyField.of(bits) <= static_cast<int>(Family::nvfp4);
  require(known, "the bits of a scheme must be those of scheme_bits");
  return {bits};
}

// data, dtype, rows, columns, row stride, column stride
using MatrixArguments =
    std::tuple<uintptr_t, int, int64_t, int64_t, int64_t, int64_t>;

// A matrix that is made while it is read has no data yet.
inline Matrix matrix_of(const MatrixArguments &arguments,
                        bool has_data = true) {
  const auto &[data, dtype, rows, columns, row_stride, column_stride] =
      arguments;
  return {memory(data, is_empty(rows, columns) || !has_data),
          dtype_of(dtype),
          rows,
          columns,
          row_stride,
          column_stride};
}

// scheme bits, columnwise, codes, scales, amax (or 0), M, N; of a packed weight
// only its memory, as the codes
using CopyArguments =
    std::tuple<int, bool, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t>;

inline StoredCopy copy_of(const CopyArguments &arguments) {
  const auto &[bits, columnwise, codes, scales, amax, M, N] = arguments;
  const SchemeBits scheme = scheme_of(bits);
  const bool empty = is_empty(M, N), packed = scheme.is_packed_weight();
  // The amax of a tensor's one scale is not read to decode.
  const bool reads_amax = scheme.family() == Family::nvfp4 && !packed;
  return {scheme,
          columnwise,
          memory<uint8_t>(codes, empty),
          memory<uint8_t>(scales, empty || packed),
          memory<float>(amax, empty || !reads_amax),
          M,
          N};
}

// An operand of a GEMM that need not be quantized.
using OperandArguments = std::variant<CopyArguments, MatrixArguments>;

inline std::variant<StoredCopy, Matrix>
operand_of(const OperandArguments &arguments) {
  if (const auto *copy = std::get_if<CopyArguments>(&arguments))
    return copy_of(*copy);
  return matrix_of(std::get<MatrixArguments>(arguments));
}

// scheme bits, epsilon, codes, scales, amax (or 0), whether the amax is given
using TargetArguments =
    std::tuple<int, float, uintptr_t, uintptr_t, uintptr_t, bool>;

inline std::optional<TargetCopy>
target_of(const std::optional<TargetArguments> &arguments, const Matrix &x,
          bool columnwise) {
  if (!arguments)
    return std::nullopt;
  const auto &[bits, epsilon, codes, scales, amax, amax_given] = *arguments;
  memory(amax, is_empty(x.rows, x.columns) || !scheme_of(bits).has_amax());
  return TargetCopy{
      copy_of({bits, columnwise, codes, scales, amax, x.rows, x.columns}),
      epsilon, amax_given};
}

inline void require_scale(const QuantizeArguments &arguments) {
  for (const auto *copy : {&arguments.row, &arguments.col})
    require(!*copy || !(*copy)->scheme.is_static() || arguments.scale,
            "a static scheme needs its scale");
}

inline Activation activation_of(int number) {
  require(number >= 0 && number < static_cast<int>(std::size(kActivationNames)),
          "an activation must be the number of one in activation_names");
  return static_cast<Activation>(number);
}

// kind, activation, two inputs, weight, bias, epsilon
using ProducerArguments = std::tuple<int, int, MatrixArguments, MatrixArguments,
                                     MatrixArguments, MatrixArguments, double>;

inline Producer producer_of(const ProducerArguments &arguments, Dtype dtype) {
  const auto &[kind, activation, first, second, weight, bias, epsilon] =
      arguments;
  require(kind >= 0 && kind < static_cast<int>(std::size(kProducerNames)),
          "a producer must be the number of one in producer_names");
  Producer producer{};
  producer.kind = static_cast<ProducerKind>(kind);
  producer.activation = activation_of(activation);
  producer.inputs[0] = matrix_of(first);
  producer.inputs[1] = matrix_of(second);
  producer.weight = matrix_of(weight);
  producer.bias = matrix_of(bias);
  producer.epsilon = epsilon;
  producer.dtype = dtype;
  return producer;
}

// activation, residual, preactivation
using EpilogueArguments = std::tuple<int, MatrixArguments, MatrixArguments>;

inline GemmResult result_of(const MatrixArguments &out,
                            const MatrixArguments &bias,
                            const MatrixArguments &accumulate,
                            const std::optional<EpilogueArguments> &epilogue) {
  GemmResult result{matrix_of(out), matrix_of(bias), matrix_of(accumulate)};
  if (!epilogue)
    return result;
  const auto &[activation, residual, preactivation] = *epilogue;
  result.epilogue = activation_of(activation);
  result.residual = matrix_of(residual);
  result.preactivation = matrix_of(preactivation);
  return result;
}

// scheme bits, codes, scales, amax (or 0), columns, k
using WeightArguments =
    std::tuple<int, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t>;

inline CompactWeight weight_of(const WeightArguments &arguments) {
  const auto &[bits, codes, scales, amax, columns, k] = arguments;
  const SchemeBits scheme = scheme_of(bits);
  const bool empty = is_empty(columns, k);
  return {scheme,
          memory<uint8_t>(codes, empty),
          memory<uint8_t>(scales, empty),
          memory<float>(amax, columns == 0 || !scheme.has_amax()),
          columns,
          k};
}

} // namespace steelyard
