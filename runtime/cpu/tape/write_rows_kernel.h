// Replaces entries of a tensor along a dim, in place or in a copy.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct WriteRowsKernel final : Kernel {
  int target, indices, rows, out; // positions; in place, `out` is the target
  int dim;

  WriteRowsKernel(int target, int indices, int rows, int out, int dim)
      : target(target), indices(indices), rows(rows), out(out), dim(dim) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
