// Runs a tape as one step of another, such as that of a block of layers.
#pragma once

#include "cpu/tape/tape.h"

namespace steelyard {

struct BlockKernel final : Kernel {
  // What an argument of the tape is: a value of the step, or, at kNowhere, what
  // is known of it.
  struct Argument {
    enum class Kind : int { tensor, part, number };
    Kind kind;
    int at;       // its register
    int position; // of the value
    Tensor tensor;
    int64_t number;
  };

  std::shared_ptr<Tape> tape;
  int64_t arena; // bytes that the tape works in
  std::vector<Argument> arguments;
  std::vector<int> results; // positions, in the order of the tape's own

  BlockKernel(std::shared_ptr<Tape> tape, int64_t arena,
              std::vector<Argument> arguments, std::vector<int> results)
      : tape(std::move(tape)), arena(arena), arguments(std::move(arguments)),
        results(std::move(results)) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
