// Sums and means over the first dims of a tensor.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct ColumnsKernel final : Kernel {
  bool is_mean;
  int dims;        // that are added up
  int source, out; // positions

  ColumnsKernel(bool is_mean, int dims, int source, int out)
      : is_mean(is_mean), dims(dims), source(source), out(out) {
    require(dims > 0, "columns must be of at least one dim");
  }

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
