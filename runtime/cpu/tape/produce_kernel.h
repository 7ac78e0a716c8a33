// Writes what a producer makes, such as a norm, into memory.
#pragma once

#include "cpu/tape/kernel.h"

namespace steelyard {

// kind, activation, position of the first input, how many inputs are matrices,
// how many are vectors, epsilon
using ProducerSlots = std::tuple<int, int, int, int, int, double>;

// Raises an error if a producer has more inputs than any has.
void check_producer(const ProducerSlots &slots);
Producer producer_of(const ProducerSlots &slots, const Values &values);
// What a producer writes: contiguous, and as large as what it reads.
Matrix result_matrix(const Producer &producer, int out, const Values &values);

struct ProduceKernel final : Kernel {
  ProducerSlots producer;
  int out;

  ProduceKernel(ProducerSlots producer, int out)
      : producer(std::move(producer)), out(out) {
    check_producer(this->producer);
  }

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
