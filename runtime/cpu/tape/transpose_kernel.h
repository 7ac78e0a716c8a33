// Makes the copy of the other usage from the codes of one.
#pragma once

#include "cpu/tape/gemm_kernel.h"

namespace steelyard {

struct TransposeKernel final : Kernel {
  OperandSlots from;
  int codes, scales, amax; // positions of what is made; amax may be kNowhere
  int first_size, end_of_sizes;

  TransposeKernel(OperandSlots from, int codes, int scales, int amax,
                  int first_size, int end_of_sizes)
      : from(std::move(from)), codes(codes), scales(scales), amax(amax),
        first_size(first_size), end_of_sizes(end_of_sizes) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
