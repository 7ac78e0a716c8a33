// Adds rows where their numbers say, such as the gradient of an embedding.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct AddRowsKernel final : Kernel {
  int rows, indices, out; // positions
  int64_t padding; // the index whose rows are left out, or a negative one

  AddRowsKernel(int rows, int indices, int out, int64_t padding)
      : rows(rows), indices(indices), out(out), padding(padding) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
