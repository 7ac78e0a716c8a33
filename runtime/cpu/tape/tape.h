// A tape: the steps of a compiled program as data, run by one loop without
// Python. Values are registers: tensors, and numbers that are known only at run
// time. Each register is written once per call.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "cpu/tape/kernel.h"
#include "cpu/tape/views.h"

namespace steelyard {

// A number of a step: it is known, it is a register's, or it follows from the
// sizes of a tensor in a register, or of the first operands of the step.
struct Number {
  // Columns are the last dim, rows all others. What a tensor in groups stores
  // of its rows has room for the most that any groups need: `grouped`.
  enum class Kind : int { constant, number, dim, rows, sum, columns, grouped };
  Kind kind;
  int64_t value;      // a constant, or a register; of a sum: how many operands
  int64_t detail;     // which dim; how many rows or columns share one block
  int64_t factor = 1; // how large a block of rows or columns is
  int64_t groups = 0; // how many there may be
};

// Where the memory of a result comes from.
enum class Home : int {
  arena, // a place in the memory that the program's kernels share
  heap,  // memory of its own, until it is freed
  caller // a tensor of Python's, which the call returns
};

struct Result {
  int tensor; // its register
  ItemType type;
  std::vector<Number> sizes;
  std::vector<int> order; // of its dims in memory, outermost first
  Home home;
  int64_t place; // offset in the arena; position among the returned tensors
};

struct KernelStep {
  const Kernel *kernel;
  std::vector<int> values; // registers of operands and results
  std::vector<Result> results;
};

struct ViewStep {
  View view;
  int from, to;
  std::vector<Number> numbers;
};

struct FreeStep {
  int tensor;
};

using Step = std::variant<KernelStep, ViewStep, FreeStep>;

// Makes a tensor of Python's and gives its memory.
using Allocate = std::function<uint8_t *(const Result &, const Tensor &)>;
// Is told which argument, by register, no step reads any more.
using Release = std::function<void(int tensor)>;
// The caller of a tape. Without `release`, it keeps its arguments.
struct Caller {
  Allocate allocate;
  Release release = {};
};
// Is told before and after each step that runs a kernel.
using Observe = std::function<void(size_t step, bool begins)>;

// Blocks of memory that a call of a tape owns. Those that it used are kept for
// the next call; others are given back, so that what one large call needed goes
// with the first smaller one.
class Heap {
public:
  // The number of a block, whose memory is aligned to 64 bytes. It is at most
  // twice as large as it must be.
  int take(int64_t bytes);
  uint8_t *memory(int block) { return blocks_[block].memory.get(); }
  void share(int block) { ++blocks_[block].owners; }
  void release(int block) { --blocks_[block].owners; }
  void end_call();
  int64_t nbytes() const;

private:
  struct Free {
    void operator()(uint8_t *memory) const;
  };
  struct Block {
    std::unique_ptr<uint8_t, Free> memory;
    int64_t bytes;
    int owners;
    bool was_used;
  };
  std::vector<Block> blocks_;
};

// What one call of a tape works on.
struct Frame {
  std::vector<Tensor> tensors;
  std::vector<int64_t> numbers;
  std::vector<int> blocks; // of the tensors in these registers, or kNowhere
  Heap heap;
  int64_t given = 0; // the number of the call that it was given back by
};

class Tape {
public:
  Tape(int tensors, int numbers) : tensors_(tensors), numbers_(numbers) {}

  // Raises an error if a step names a register that there is none of.
  void add(Step step);
  const std::vector<Step> &steps() const { return steps_; }

  // Calls may overlap: each has a frame of its own. What many calls did
  // without, because fewer of them overlap by now, is freed.
  std::unique_ptr<Frame> take_frame();
  void give_frame(std::unique_ptr<Frame> frame);

  // Bytes of the heaps that no call works on.
  int64_t nbytes();

  // Runs the steps on the tensors and numbers that a frame has been given.
  void run(Frame &frame, uint8_t *arena, int threads, const Caller &caller,
           const Observe *observe) const;

private:
  void check(int tensor) const;
  void check(const Number &number) const;
  void check_sum(const Number &number, const KernelStep &step) const;

  int tensors_, numbers_;
  std::vector<Step> steps_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Frame>> frames_; // the last one given back last
  int64_t calls_ = 0;
};

// A frame for one call, which goes back when the call ends, also by an error.
class LentFrame {
public:
  explicit LentFrame(Tape &tape) : tape_(tape), frame_(tape.take_frame()) {}
  LentFrame(const LentFrame &) = delete;
  LentFrame &operator=(const LentFrame &) = delete;
  ~LentFrame() { tape_.give_frame(std::move(frame_)); }

  Frame &operator*() const { return *frame_; }
  Frame *operator->() const { return frame_.get(); }

private:
  Tape &tape_;
  std::unique_ptr<Frame> frame_;
};

} // namespace steelyard
