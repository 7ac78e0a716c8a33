// Sums, means and softmax of rows.
#pragma once

#include "cpu/rows/rows.h"
#include "cpu/tape/kernel.h"

namespace steelyard {

struct RowsKernel final : Kernel {
  RowFunction function;
  int source, out; // positions

  RowsKernel(int function, int source, int out) : source(source), out(out) {
    require(function >= 0 &&
                function < static_cast<int>(std::size(kRowFunctionNames)),
            "a function of rows must be the number of one");
    this->function = static_cast<RowFunction>(function);
  }

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
