// The gradients of attention.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct AttentionBackwardKernel final : Kernel {
  // Positions of grad_out, query, key, value, out and logsumexp come first, in
  // this order; those of the gradients of query, key and value begin here.
  int mask, gradients;        // mask may be kNowhere
  std::optional<float> scale; // none: one over the root of the head size
  bool causal;

  AttentionBackwardKernel(int mask, int gradients, std::optional<float> scale,
                          bool causal)
      : mask(mask), gradients(gradients), scale(scale), causal(causal) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
