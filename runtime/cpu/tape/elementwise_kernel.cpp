#include "cpu/tape/elementwise_kernel.h"

namespace steelyard {

ElementwiseKernel::ElementwiseKernel(ElementwiseProgram program,
                                     std::vector<Place> places, int first_size,
                                     int end_of_sizes)
    : program(std::move(program)), places(std::move(places)),
      first_size(first_size), end_of_sizes(end_of_sizes) {
  require(this->places.size() <= kMostTensors &&
              end_of_sizes - first_size <= kMostTensors,
          "a program must not have more tensors or sizes than it may");
}

void ElementwiseKernel::run(const Values &values, int threads) const {
  int64_t sizes[kMostTensors];
  for (int i = first_size; i < end_of_sizes; ++i)
    sizes[i - first_size] = values.number(i);
  ElementwiseTensor tensors[kMostTensors];
  Tensor read[kMostTensors];
  for (size_t i = 0; i < places.size(); ++i) {
    const auto &[position, known] = places[i];
    if (known) {
      tensors[i] = {pointer(values.address(position)), known->data()};
    } else {
      read[i] = values.tensor(position);
      tensors[i] = {read[i].data, read[i].strides.data()};
    }
  }
  require_memory(tensors, sizes);
  values.done();
  run_elementwise(program, tensors, sizes, threads);
}

// What no loop walks may have no memory.
void ElementwiseKernel::require_memory(const ElementwiseTensor *tensors,
                                       const int64_t *sizes) const {
  for (const ElementwiseLoop &loop : program.loops) {
    bool is_empty = false;
    for (const int64_t size : loop.sizes)
      is_empty |= (size >= 0 ? size : sizes[-1 - size]) == 0;
    for (const ElementwiseAccess &access : loop.accesses)
      memory(reinterpret_cast<uintptr_t>(tensors[access.tensor].data),
             is_empty);
  }
}

} // namespace steelyard
