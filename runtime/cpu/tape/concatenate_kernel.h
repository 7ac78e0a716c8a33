// Puts tensors one after the other along a dim.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct ConcatenateKernel final : Kernel {
  int count; // of operands; the result follows them
  int dim;

  ConcatenateKernel(int count, int dim) : count(count), dim(dim) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
