// Copies a tensor into another of the same sizes.
#pragma once

#include "cpu/tape/tensor.h"

namespace steelyard {

void copy_tensor(const Tensor &from, const Tensor &to, int threads);

} // namespace steelyard
