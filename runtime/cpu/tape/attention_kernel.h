// Attention over keys and values in high precision, or over E4M3 codes.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct AttentionKernel final : Kernel {
  // Positions; scales, new keys and values, and mask may be kNowhere.
  int query, key, value, key_scales, value_scales, new_key, new_value, mask,
      out, logsumexp;
  std::optional<float> scale; // none: one over the root of the head size
  bool causal;

  AttentionKernel(int query, int key, int value, int key_scales,
                  int value_scales, int new_key, int new_value, int mask,
                  int out, int logsumexp, std::optional<float> scale,
                  bool causal)
      : query(query), key(key), value(value), key_scales(key_scales),
        value_scales(value_scales), new_key(new_key), new_value(new_value),
        mask(mask), out(out), logsumexp(logsumexp), scale(scale),
        causal(causal) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
