// Quantizes a matrix, or what a producer makes.
#pragma once

#include "cpu/tape/produce_kernel.h"

namespace steelyard {

// scheme bits, epsilon, positions of codes, scales and amax, and whether that
// is the amax of the whole tensor as it is
using DestinationSlots = std::tuple<int, float, int, int, int, bool>;

// The copy that a call makes of `x`; none without slots.
std::optional<TargetCopy>
destination_of(const std::optional<DestinationSlots> &slots,
               const Values &values, const Matrix &x, bool columnwise);

// Reads seed and offset of stochastic rounding, if there is a state.
void set_random_state(QuantizeArguments &arguments, int rng,
                      const Values &values);

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
