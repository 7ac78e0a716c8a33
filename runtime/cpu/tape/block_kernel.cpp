#include "cpu/tape/block_kernel.h"

namespace steelyard {
namespace {

void read(const BlockKernel::Argument &argument, const Values &values,
          Frame &frame) {
  const bool is_known = argument.position == kNowhere;
  switch (argument.kind) {
  case BlockKernel::Argument::Kind::tensor:
    frame.tensors[argument.at] =
        is_known ? argument.tensor : values.tensor(argument.position);
    break;
  case BlockKernel::Argument::Kind::part:
    frame.tensors[argument.at].data =
        is_known
            ? argument.tensor.data
            : reinterpret_cast<uint8_t *>(values.address(argument.position));
    break;
  case BlockKernel::Argument::Kind::number:
    frame.numbers[argument.at] =
        is_known ? argument.number : values.number(argument.position);
    break;
  }
}

// Memory for what a tape makes. The step may see it in other dims.
uint8_t *memory_for(const Tensor &made, const Tensor &inner) {
  require(made.elements() == inner.elements() && made.type == inner.type,
          "a result of a block must have the size and the dtype of what the "
          "block's own program makes; compile both again");
  require(inner.is_contiguous(),
          "a block must make its results in the order of their dims");
  return contiguous_memory(made);
}

} // namespace

void BlockKernel::run(const Values &values, int threads) const {
  const LentFrame frame(*tape);
  for (const Argument &argument : arguments)
    read(argument, values, *frame);
  std::vector<Tensor> made;
  for (const int position : results)
    made.push_back(values.tensor(position));
  values.done();
  const Allocate allocate = [&](const Result &result, const Tensor &inner) {
    return memory_for(made[result.place], inner);
  };
  Heap &heap = frame->heap;
  uint8_t *memory = heap.memory(heap.take(arena));
  tape->run(*frame, memory, threads, {allocate}, nullptr);
}

} // namespace steelyard
