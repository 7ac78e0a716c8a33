// Numbers of rows, as tensors hold them.
#pragma once

#include <vector>

#include "cpu/tape/tensor.h"

namespace steelyard {

// Those in a tensor of 32 or 64-bit integers. Raises an error, Python's
// IndexError, if one is not below `count`.
std::vector<int64_t> indices_of(const Tensor &x, int64_t count);

} // namespace steelyard
