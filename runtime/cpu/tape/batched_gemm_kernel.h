// Multiplies quantized tensors entry by entry of their batch dims.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

// scheme bits, positions of codes, scales and amax
using EntrySlots = std::tuple<int, int, int, int>;

struct BatchedGemmKernel final : Kernel {
  EntrySlots lhs, rhs;
  int out, batch_dims;
  std::optional<int64_t> reduced; // none: rows of codes tell how long they are

  BatchedGemmKernel(EntrySlots lhs, EntrySlots rhs, int out, int batch_dims,
                    std::optional<int64_t> reduced)
      : lhs(lhs), rhs(rhs), out(out), batch_dims(batch_dims), reduced(reduced) {
  }

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
