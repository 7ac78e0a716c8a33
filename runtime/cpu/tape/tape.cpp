#include "cpu/tape/tape.h"

#include <algorithm>
#include <new>
#include <numeric>

namespace steelyard {
namespace {

constexpr int64_t kAlignment = 64;
// A frame goes when so many calls did without it.
constexpr int64_t kIdleCalls = 64;

// `operands`: the registers of the step's values, if it runs a kernel.
int64_t value_of(const Number &number, const Frame &frame,
                 const std::vector<int> &operands) {
  switch (number.kind) {
  case Number::Kind::constant:
    return number.value;
  case Number::Kind::number:
    return frame.numbers[number.value];
  case Number::Kind::dim: {
    const Tensor &x = frame.tensors[number.value];
    require(number.detail < x.dims, "a size must be that of a dim");
    return x.sizes[number.detail];
  }
  case Number::Kind::rows:
    return ceil_div(frame.tensors[number.value].rows(), number.detail) *
           number.factor;
  case Number::Kind::columns: {
    const Tensor &x = frame.tensors[number.value];
    require(x.dims > 0, "only a tensor with dims has columns");
    return ceil_div(x.sizes[x.dims - 1], number.detail) * number.factor;
  }
  case Number::Kind::grouped: {
    // Each group may begin a block.
    const int64_t rows = frame.tensors[number.value].rows();
    const int64_t first = std::min(rows, number.groups);
    return (first + (rows - first) / number.detail) * number.factor;
  }
  case Number::Kind::sum: {
    int64_t sum = 0;
    for (int64_t i = 0; i < number.value; ++i)
      sum += frame.tensors[operands[i]].sizes[number.detail];
    return sum;
  }
  }
  return 0;
}

class Registers final : public Values {
public:
  Registers(Frame &frame, const std::vector<int> &values)
      : frame_(frame), values_(values) {}
  ~Registers() override {
    for (const int block : copies_)
      frame_.heap.release(block);
  }

  Tensor tensor(int position) const override {
    return frame_.tensors[values_[position]];
  }
  Matrix matrix(int position) const override {
    Tensor x = tensor(position);
    if (const auto matrix = as_matrix(x))
      return *matrix;
    const int block = frame_.heap.take(x.elements() * x.type.bytes);
    copies_.push_back(block);
    copy_elements(x, frame_.heap.memory(block));
    x.data = frame_.heap.memory(block);
    x.set_contiguous();
    return *as_matrix(x);
  }
  uintptr_t address(int position) const override {
    return reinterpret_cast<uintptr_t>(tensor(position).data);
  }
  int64_t number(int position) const override {
    return frame_.numbers[values_[position]];
  }

private:
  Frame &frame_;
  const std::vector<int> &values_;
  mutable std::vector<int> copies_;
};

class Loop {
public:
  Loop(Frame &frame, uint8_t *arena, int threads, const Caller &caller)
      : frame_(frame), arena_(arena), threads_(threads), caller_(caller) {}

  void operator()(const KernelStep &step) {
    for (const Result &result : step.results)
      make(result, step.values);
    step.kernel->run(Registers(frame_, step.values), threads_);
  }

  void operator()(const ViewStep &step) {
    numbers_.clear();
    for (const Number &number : step.numbers)
      numbers_.push_back(value_of(number, frame_, {}));
    const Tensor &x = frame_.tensors[step.from];
    if (const auto made = view_of(step.view, x, numbers_)) {
      frame_.tensors[step.to] = *made;
      share(step.from, step.to);
      return;
    }
    Tensor copy = x;
    const int block = frame_.heap.take(x.elements() * x.type.bytes);
    copy_elements(x, frame_.heap.memory(block));
    copy.data = frame_.heap.memory(block);
    copy.set_contiguous();
    frame_.tensors[step.to] = *view_of(step.view, copy, numbers_);
    frame_.blocks[step.to] = block;
  }

  void operator()(const FreeStep &step) {
    int &block = frame_.blocks[step.tensor];
    if (block != kNowhere)
      frame_.heap.release(block);
    else if (caller_.release)
      caller_.release(step.tensor);
    block = kNowhere;
  }

private:
  // No register is written twice, so none has a block to give back before.
  void share(int from, int to) {
    const int block = frame_.blocks[from];
    frame_.blocks[to] = block;
    if (block != kNowhere)
      frame_.heap.share(block);
  }

  void make(const Result &result, const std::vector<int> &operands) {
    Tensor x{
        nullptr, result.type, static_cast<int>(result.sizes.size()), {}, {}};
    for (int i = 0; i < x.dims; ++i)
      x.sizes[i] = value_of(result.sizes[i], frame_, operands);
    int64_t stride = 1;
    for (int i = x.dims; i-- > 0;) {
      const int dim = result.order.empty() ? i : result.order[i];
      x.strides[dim] = stride;
      stride *= std::max<int64_t>(x.sizes[dim], 1);
    }
    if (result.home == Home::arena) {
      x.data = arena_ + result.place;
    } else if (result.home == Home::caller) {
      x.data = caller_.allocate(result, x);
    } else {
      const int block = frame_.heap.take(x.elements() * x.type.bytes);
      x.data = frame_.heap.memory(block);
      frame_.blocks[result.tensor] = block;
    }
    frame_.tensors[result.tensor] = x;
  }

  Frame &frame_;
  uint8_t *arena_;
  int threads_;
  const Caller &caller_;
  std::vector<int64_t> numbers_;
};

// Runs a step between what an observer is told of it, also if the step fails.
void run_observed(Loop &loop, const Step &step, size_t number,
                  const Observe &observe) {
  observe(number, true);
  try {
    std::visit(loop, step);
  } catch (...) {
    observe(number, false);
    throw;
  }
  observe(number, false);
}

} // namespace

void Heap::Free::operator()(uint8_t *memory) const {
  ::operator delete[](memory, std::align_val_t{kAlignment});
}

int Heap::take(int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  int best = kNowhere;
  for (int i = 0; i < static_cast<int>(blocks_.size()); ++i) {
    const Block &block = blocks_[i];
    const bool fits = block.owners == 0 && block.bytes >= bytes &&
                      block.bytes - bytes <= bytes;
    if (fits && (best == kNowhere || block.bytes < blocks_[best].bytes))
      best = i;
  }
  if (best == kNowhere) {
    auto *memory = static_cast<uint8_t *>(
        ::operator new[](bytes, std::align_val_t{kAlignment}));
    blocks_.push_back({std::unique_ptr<uint8_t, Free>(memory), bytes, 0, true});
    best = static_cast<int>(blocks_.size()) - 1;
  }
  blocks_[best].owners = 1;
  blocks_[best].was_used = true;
  return best;
}

void Heap::end_call() {
  std::erase_if(blocks_, [](const Block &block) { return !block.was_used; });
  for (Block &block : blocks_) {
    block.owners = 0;
    block.was_used = false;
  }
}

int64_t Heap::nbytes() const {
  int64_t sum = 0;
  for (const Block &block : blocks_)
    sum += block.bytes;
  return sum;
}

void Tape::check(int tensor) const {
  require(tensor >= 0 && tensor < tensors_, "a step must name a register");
}

void Tape::check(const Number &number) const {
  if (number.kind == Number::Kind::constant)
    return;
  require(number.kind != Number::Kind::sum,
          "only a result may have the size of all operands");
  const bool is_number = number.kind == Number::Kind::number;
  require(number.value >= 0 && number.value < (is_number ? numbers_ : tensors_),
          "a number must be that of a register");
  require(is_number || number.detail >= 0, "a dim must not be negative");
  const bool counts = !is_number && number.kind != Number::Kind::dim;
  require(!counts || number.detail > 0, "rows must be counted by at least one");
}

void Tape::check_sum(const Number &number, const KernelStep &step) const {
  require(number.value >= 0 &&
              number.value <= static_cast<int64_t>(step.values.size()) &&
              number.detail >= 0 && number.detail < kMostDims,
          "a sum must be of operands and of a dim");
  for (int64_t i = 0; i < number.value; ++i)
    check(step.values[i]);
}

void Tape::add(Step step) {
  if (const auto *kernel = std::get_if<KernelStep>(&step)) {
    // Positions of tensors and of numbers are told apart by the kernel.
    for (const int value : kernel->values)
      require(value >= 0 && value < std::max(tensors_, numbers_),
              "a step must name a register");
    for (const Result &result : kernel->results) {
      check(result.tensor);
      require(result.sizes.size() <= kMostDims,
              "a tensor must have at most 8 dims");
      for (const Number &number : result.sizes)
        if (number.kind != Number::Kind::sum)
          check(number);
        else
          check_sum(number, *kernel);
    }
  } else if (const auto *view = std::get_if<ViewStep>(&step)) {
    check(view->from);
    check(view->to);
    for (const Number &number : view->numbers)
      check(number);
  } else {
    check(std::get<FreeStep>(step).tensor);
  }
  steps_.push_back(std::move(step));
}

std::unique_ptr<Frame> Tape::take_frame() {
  {
    const std::lock_guard guard(lock_);
    if (!frames_.empty()) {
      auto frame = std::move(frames_.back());
      frames_.pop_back();
      return frame;
    }
  }
  auto frame = std::make_unique<Frame>();
  frame->tensors.resize(tensors_);
  frame->numbers.resize(numbers_);
  frame->blocks.assign(tensors_, kNowhere);
  return frame;
}

void Tape::give_frame(std::unique_ptr<Frame> frame) {
  std::fill(frame->blocks.begin(), frame->blocks.end(), kNowhere);
  frame->heap.end_call();
  std::unique_ptr<Frame> idle; // freed when others may go on
  const std::lock_guard guard(lock_);
  frame->given = ++calls_;
  frames_.push_back(std::move(frame));
  if (frames_.front()->given + kIdleCalls <= calls_) {
    idle = std::move(frames_.front());
    frames_.erase(frames_.begin());
  }
}

int64_t Tape::nbytes() {
  const std::lock_guard guard(lock_);
  int64_t sum = 0;
  for (const auto &frame : frames_)
    sum += frame->heap.nbytes();
  return sum;
}

void Tape::run(Frame &frame, uint8_t *arena, int threads, const Caller &caller,
               const Observe *observe) const {
  Loop loop(frame, arena, threads, caller);
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (observe && std::holds_alternative<KernelStep>(steps_[i]))
      run_observed(loop, steps_[i], i, *observe);
    else
      std::visit(loop, steps_[i]);
  }
}

} // namespace steelyard
