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

} // namespace

void BlockKernel::run(const Values &values, int threads) const {
  const LentFrame frame(*tape);
  for (const Argument &argument : arguments)
    read(argument, values, *frame);
  std::vector<uint8_t *> made;
  for (const int position : results)
    made.push_back(reinterpret_cast<uint8_t *>(values.address(position)));
  values.done();
  const Allocate allocate = [&](const Result &result, const Tensor &) {
    return made[result.place];
  };
  Heap &heap = frame->heap;
  uint8_t *memory = heap.memory(heap.take(arena));
  tape->run(*frame, memory, threads, {allocate}, nullptr);
}

} // namespace steelyard
