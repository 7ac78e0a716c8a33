// Runs an elementwise program.
#pragma once

#include "cpu/elementwise/elementwise.h"
#include "cpu/tape/kernel.h"

namespace steelyard {

struct ElementwiseKernel final : Kernel {
  // The position of a tensor's value, and its strides if only its address is
  // read.
  using Place = std::tuple<int, std::optional<std::vector<int64_t>>>;

  static constexpr int kMostTensors = 32;

  ElementwiseProgram program;
  std::vector<Place> places;
  int first_size, end_of_sizes;

  ElementwiseKernel(ElementwiseProgram program, std::vector<Place> places,
                    int first_size, int end_of_sizes);

  void run(const Values &values, int threads) const override;

private:
  void require_memory(const ElementwiseTensor *tensors,
                      const int64_t *sizes) const;
};

} // namespace steelyard
