// From a quantized copy to an operand of the GEMM.
#pragma once

#include <vector>

#include "cpu/operations.h"

namespace steelyard {

// An operand with what its factors point to.
struct PlannedOperand {
  GemmOperand x;
  std::vector<double> factors;
  std::vector<float> fold;
  std::vector<uint8_t> unpacked;
};

PlannedOperand plan_operand(const StoredCopy &copy);

// Gives an operand of a packed weight the compact codes and scales that float32
// panels are made from.
void unpack_operand(PlannedOperand &operand);

} // namespace steelyard
