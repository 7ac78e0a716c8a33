// Decodes one copy of a quantized tensor.
#pragma once

#include "cpu/tape/gemm_kernel.h"

namespace steelyard {

struct DequantizeKernel final : Kernel {
  OperandSlots from;
  int out;
  int first_size, end_of_sizes;

  DequantizeKernel(OperandSlots from, int out, int first_size, int end_of_sizes)
      : from(std::move(from)), out(out), first_size(first_size),
        end_of_sizes(end_of_sizes) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
