// How Python describes its arguments: tuples of plain numbers, and what of
// operations.h each becomes. Every order of such a tuple is in this file.
//
// Tensors come as integers (data_ptr), shapes and strides: an ndarray argument
// costs twenty times as much. Python has checked every one of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>

#include "cpu/gemm/packed_weight.h"
#include "cpu/operations.h"
#include "cpu/produce/produce.h"

namespace steelyard {

// An address, 0 for null.
template <class T = void> T *pointer(uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

// data, dtype, rows, columns, row stride, column stride
using MatrixArguments =
    std::tuple<uintptr_t, int, int64_t, int64_t, int64_t, int64_t>;

inline Matrix matrix_of(const MatrixArguments &arguments) {
  const auto &[data, dtype, rows, columns, row_stride, column_stride] =
      arguments;
  return {pointer(data), static_cast<Dtype>(dtype), rows, columns, row_stride,
          column_stride};
}

// scheme bits, columnwise, codes, scales, amax (or 0), M, N; of a packed weight
// only its memory, as the codes
using CopyArguments =
    std::tuple<int, bool, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t>;

inline StoredCopy copy_of(const CopyArguments &arguments) {
  const auto &[bits, columnwise, codes, scales, amax, M, N] = arguments;
  return {{bits},
          columnwise,
          pointer<uint8_t>(codes),
          pointer<uint8_t>(scales),
          pointer<float>(amax),
          M,
          N};
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
  return TargetCopy{
      copy_of({bits, columnwise, codes, scales, amax, x.rows, x.columns}),
      epsilon, amax_given};
}

// kind, activation, two inputs, weight, bias, epsilon
using ProducerArguments = std::tuple<int, int, MatrixArguments, MatrixArguments,
                                     MatrixArguments, MatrixArguments, double>;

inline Producer producer_of(const ProducerArguments &arguments, Dtype dtype) {
  const auto &[kind, activation, first, second, weight, bias, epsilon] =
      arguments;
  Producer producer{};
  producer.kind = static_cast<ProducerKind>(kind);
  producer.activation = static_cast<Activation>(activation);
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
  result.epilogue = static_cast<Activation>(activation);
  result.residual = matrix_of(residual);
  result.preactivation = matrix_of(preactivation);
  return result;
}

// codes, scales, amax, columns, k, whether each column has its own amax
using WeightArguments =
    std::tuple<uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t, bool>;

inline CompactWeight weight_of(const WeightArguments &arguments) {
  const auto &[codes, scales, amax, columns, k, row_scaled] = arguments;
  return {pointer<uint8_t>(codes),
          pointer<uint8_t>(scales),
          pointer<float>(amax),
          columns,
          k,
          row_scaled};
}

} // namespace steelyard
