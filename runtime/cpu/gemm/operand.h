// From a quantized copy to an operand of the GEMM.
#pragma once

#include <vector>

#include "cpu/gemm/problem.h"
#include "cpu/operations.h"

namespace steelyard {

// What an operand points to beside the memory of its copy.
struct OperandMemory {
  std::vector<double> factors;
  std::vector<float> fold;
};

// Fills in all of `x`, which must be zero.
OperandMemory describe_operand(const StoredCopy &copy, GemmOperand &x);

// The same for (outer, k) values that are not quantized.
void describe_values(const Matrix &values, GemmOperand &x);

} // namespace steelyard
