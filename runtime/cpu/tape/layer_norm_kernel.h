// Layer norms in training: what their gradients need of each row is a result,
// too.
#pragma once

#include "cpu/tape/produce_kernel.h"

namespace steelyard {

struct LayerNormKernel final : Kernel {
  ProducerSlots producer;
  int out, mean, rstd; // positions

  LayerNormKernel(ProducerSlots producer, int out, int mean, int rstd)
      : producer(std::move(producer)), out(out), mean(mean), rstd(rstd) {
    check_producer(this->producer);
  }

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
