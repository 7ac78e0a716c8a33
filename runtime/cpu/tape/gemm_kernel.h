// Multiplies quantized tensors, or a matrix and a quantized tensor.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

// scheme bits, columnwise, positions of codes, scales and amax, rows as far as
// they are known, whether the sizes of a call are factors of them, columns
using OperandSlots =
    std::tuple<int, bool, int, int, int, int64_t, bool, int64_t>;

// The copy that an operand is, with the product of a call's sizes.
StoredCopy operand_of(const OperandSlots &slots, const Values &values,
                      int64_t sizes);

// The product of the numbers at these positions.
int64_t product_of(const Values &values, int begin, int end);

struct GemmKernel final : Kernel {
  std::optional<OperandSlots> lhs; // none: the first value is a matrix
  OperandSlots rhs;
  int bias, residual, out, preactivation, activation;
  int first_size, end_of_sizes;

  GemmKernel(std::optional<OperandSlots> lhs, OperandSlots rhs, int bias,
             int residual, int out, int preactivation, int activation,
             int first_size, int end_of_sizes)
      : lhs(std::move(lhs)), rhs(std::move(rhs)), bias(bias),
        residual(residual), out(out), preactivation(preactivation),
        activation(activation), first_size(first_size),
        end_of_sizes(end_of_sizes) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
