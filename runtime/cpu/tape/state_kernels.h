// Scales and random state: what a training step hands to the next.
#pragma once

#include <functional>
#include <vector>

#include "cpu/quantize/delayed.h"
#include "cpu/tape/kernel.h"

namespace steelyard {

// The largest magnitude of the first value, or of each of its rows.
struct AmaxKernel final : Kernel {
  bool rht, per_row;

  AmaxKernel(bool rht, bool per_row) : rht(rht), per_row(per_row) {}

  void run(const Values &values, int threads) const override;
};

// One step of delayed scaling: takes a scale, its history and the newest amax,
// or those of several experts; makes the next scale and history.
struct UpdateScaleKernel final : Kernel {
  // Makes amaxes those of all ranks.
  using Exchange = std::function<void(std::vector<float> &)>;

  DelayedRule rule;
  Exchange exchange; // none: those of this rank are used

  UpdateScaleKernel(DelayedRule rule, Exchange exchange)
      : rule(rule), exchange(std::move(exchange)) {}

  void run(const Values &values, int threads) const override;
};

// The random state of the next backward: a seed, and one more than an offset.
struct AdvanceRngKernel final : Kernel {
  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
