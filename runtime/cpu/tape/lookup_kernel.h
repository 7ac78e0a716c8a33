// Picks rows of a table by their numbers.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct LookupKernel final : Kernel {
  int table, indices, out; // positions

  LookupKernel(int table, int indices, int out)
      : table(table), indices(indices), out(out) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
