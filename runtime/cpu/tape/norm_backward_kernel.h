// The gradients of a layer norm.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

struct NormBackwardKernel final : Kernel {
  // Positions. There may be no weight, and any gradient may be missing.
  int grad, source, mean, rstd, weight;
  int grad_source, grad_weight, grad_bias;

  NormBackwardKernel(int grad, int source, int mean, int rstd, int weight,
                     int grad_source, int grad_weight, int grad_bias)
      : grad(grad), source(source), mean(mean), rstd(rstd), weight(weight),
        grad_source(grad_source), grad_weight(grad_weight),
        grad_bias(grad_bias) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
