// Quantizes a matrix, or what a producer makes.
#pragma once

#include "cpu/tape/produce_kernel.h"

namespace steelyard {

// scheme bits, epsilon, positions of codes, scales and amax, and whether that
// is the amax of the whole tensor as it is
using DestinationSlots = std::tuple<int, float, int, int, int, bool>;

struct QuantizeKernel final : Kernel {
  std::optional<DestinationSlots> row, col;
  int scale, rng;
  std::optional<ProducerSlots> producer;
  bool keeps; // what is produced is computed once, then read for its amax

  QuantizeKernel(std::optional<DestinationSlots> row,
                 std::optional<DestinationSlots> col, int scale, int rng,
                 std::optional<ProducerSlots> producer, bool keeps);

  void run(const Values &values, int threads) const override;

private:
  void run_kept(QuantizeArguments arguments, int threads) const;
};

} // namespace steelyard
