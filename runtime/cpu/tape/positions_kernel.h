// Counts on from a number in a tensor, as tokens are numbered.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct PositionsKernel final : Kernel {
  int start, out; // positions of values
  int64_t offset; // of the first number from that in `start`

  PositionsKernel(int start, int out, int64_t offset)
      : start(start), out(out), offset(offset) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
