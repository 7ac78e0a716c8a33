// How Python describes a producer to the kernels.
#pragma once

#include "cpu/bind/bindings.h"
#include "cpu/produce/produce.h"

namespace steelyard {

// kind, activation, two inputs, weight, bias, epsilon
using ProducerArguments = std::tuple<int, int, MatrixArguments, MatrixArguments,
                                     MatrixArguments, MatrixArguments, double>;

inline Producer producer_of(const ProducerArguments &arguments, Dtype dtype) {
  const auto &[kind, activation, first, second, weight, bias, epsilon] =
      arguments;
  return {static_cast<ProducerKind>(kind),
          static_cast<Activation>(activation),
          {matrix(first), matrix(second)},
          matrix(weight),
          matrix(bias),
          epsilon,
          dtype,
          nullptr,
          false};
}

} // namespace steelyard
