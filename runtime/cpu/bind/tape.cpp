// Tapes, as Python makes and calls them.
#include "cpu/tape/block_kernel.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/bind/bindings.h"
#include "cpu/bind/bound.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// Of a part, only the address is read.
using ArgumentKind = BlockKernel::Argument::Kind;

// kind, register
using ArgumentSlot = std::tuple<int, int>;
// kind, value, detail and, where they are not 1 and 0, factor and groups
using NumberSlots = std::vector<int64_t>;
// register, code of the dtype, sizes, order of the dims, home, place
using ResultSlots = std::tuple<int, int, std::vector<NumberSlots>,
                               std::vector<int>, int, int64_t>;

std::vector<Number> numbers_of(const std::vector<NumberSlots> &slots) {
  std::vector<Number> numbers;
  for (const NumberSlots &slot : slots) {
    require(slot.size() >= 3 && slot.size() <= 5,
            "a number must have a kind, a value and a detail");
    require(slot[0] >= 0 && slot[0] <= static_cast<int>(Number::Kind::grouped),
            "a number must have a known kind");
    Number number{static_cast<Number::Kind>(slot[0]), slot[1], slot[2]};
    if (slot.size() > 3)
      number.factor = slot[3];
    if (slot.size() > 4)
      number.groups = slot[4];
    numbers.push_back(number);
  }
  return numbers;
}

Result result_of(const ResultSlots &slots) {
  const auto &[tensor, type, sizes, order, home, place] = slots;
  require(home >= 0 && home <= static_cast<int>(Home::caller),
          "a result must have a known home");
  return {tensor, ItemType::of(type),      numbers_of(sizes),
          order,  static_cast<Home>(home), place};
}

nb::tuple tuple_of(const int64_t *values, int count) {
  nb::object made = nb::steal(PyTuple_New(count));
  for (int i = 0; i < count; ++i)
    PyTuple_SET_ITEM(made.ptr(), i, PyLong_FromLongLong(values[i]));
  return nb::tuple(made);
}

class PythonTape {
public:
  PythonTape(nb::object reader, std::vector<ArgumentSlot> arguments,
             int tensors, int numbers, std::vector<nb::callable> makers)
      : owner_(reader), reader_(nb::cast<const TensorReader &>(reader)),
        arguments_(std::move(arguments)), makers_(std::move(makers)),
        tape_(std::make_shared<Tape>(tensors, numbers)) {
    for (const auto &[kind, at] : arguments_) {
      const bool is_number = kind == static_cast<int>(ArgumentKind::number);
      require(at >= 0 && at < (is_number ? numbers : tensors),
              "an argument must name a register");
    }
  }

  void add_kernel(nb::object kernel, std::vector<int> values,
                  const std::vector<ResultSlots> &results) {
    KernelStep step{nb::cast<const BoundKernel &>(kernel).kernel.get(),
                    std::move(values),
                    {}};
    for (const ResultSlots &slots : results) {
      step.results.push_back(result_of(slots));
      const Result &result = step.results.back();
      require(result.home != Home::caller ||
                  (result.place >= 0 &&
                   result.place < static_cast<int64_t>(makers_.size())),
              "a tensor of Python's must have its maker");
    }
    kernels_.push_back(std::move(kernel));
    tape_->add(std::move(step));
  }

  void add_view(int view, int from, int to,
                const std::vector<NumberSlots> &numbers) {
    require(view >= 0 && view < static_cast<int>(std::size(kViewNames)),
            "a view must be the number of one in view_names");
    tape_->add(
        ViewStep{static_cast<View>(view), from, to, numbers_of(numbers)});
  }

  void add_free(int tensor) { tape_->add(FreeStep{tensor}); }

  nb::object call(const nb::args &values) const {
    return run(objects_in(values), nullptr);
  }

  // Empties the list: each argument is freed after its last use, if nobody else
  // holds it.
  nb::object consume(nb::list values) const {
    std::vector<nb::object> taken = objects_in(values);
    values.clear();
    return run(std::move(taken), nullptr);
  }

  int64_t nbytes() const { return tape_->nbytes(); }

  // The first value is a list with one context manager per kernel step.
  nb::object recorded(const nb::args &values) const {
    const nb::list records(values[0]);
    const nb::args others = nb::steal<nb::args>(
        PyTuple_GetSlice(values.ptr(), 1, PyTuple_GET_SIZE(values.ptr())));
    return run(objects_in(others), &records);
  }

  // This tape as a step of another. Its arguments are values of the step, by
  // position, or, at kNowhere, those that are given here.
  BoundKernel as_step(nb::object self, int64_t arena,
                      const std::vector<int> &positions, const nb::list &known,
                      std::vector<int> results) const {
    require(positions.size() == arguments_.size() &&
                known.size() == arguments_.size(),
            "a tape must get its arguments");
    require(results.size() == makers_.size(),
            "a tape must get a place for each of its results");
    std::vector<BlockKernel::Argument> arguments;
    nb::list kept;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      arguments.push_back(argument(i, positions[i], known[i], kept));
    }
    auto kernel = std::make_shared<BlockKernel>(
        tape_, arena, std::move(arguments), std::move(results));
    return {std::move(kernel), nb::make_tuple(self, kept), reader_};
  }

private:
  BlockKernel::Argument argument(size_t number, int position, nb::handle known,
                                 nb::list &kept) const {
    const auto &[kind, at] = arguments_[number];
    BlockKernel::Argument made{
        static_cast<ArgumentKind>(kind), at, position, {}, 0};
    if (position != kNowhere)
      return made;
    if (made.kind == ArgumentKind::number) {
      made.number = nb::cast<int64_t>(known);
      return made;
    }
    nb::object tensor;
    made.tensor = reader_.tensor(known, tensor);
    kept.append(tensor);
    return made;
  }

  static std::vector<nb::object> objects_in(const nb::object &values) {
    std::vector<nb::object> found;
    for (nb::handle value : values)
      found.push_back(nb::borrow(value));
    return found;
  }

  // The arena's address, then the arguments.
  nb::object run(std::vector<nb::object> values,
                 const nb::list *records) const {
    require(values.size() == arguments_.size() + 1,
            "a tape must get the address of its arena and its arguments");
    auto *arena = pointer<uint8_t>(nb::cast<uintptr_t>(values[0]));
    const LentFrame frame(*tape_);
    std::vector<nb::object> kept(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i)
      read(arguments_[i], values[i + 1], *frame, kept[i]);
    std::vector<nb::object> made(makers_.size());
    const Allocate allocate = [&](const Result &result, const Tensor &x) {
      const nb::gil_scoped_acquire locked;
      nb::object &tensor = made[result.place];
      tensor = makers_[result.place](tuple_of(x.sizes.data(), x.dims),
                                     tuple_of(x.strides.data(), x.dims));
      return pointer<uint8_t>(TensorReader::address(tensor));
    };
    const Release release = [&](int tensor) {
      const nb::gil_scoped_acquire locked;
      for (size_t i = 0; i < arguments_.size(); ++i) {
        const auto &[kind, at] = arguments_[i];
        if (at == tensor && kind != static_cast<int>(ArgumentKind::number)) {
          values[i + 1].reset();
          kept[i].reset();
        }
      }
    };
    const Caller caller{allocate, release};
    const int threads = reader_.threads();
    if (records) {
      size_t record = 0;
      const Observe observe = [&](size_t, bool begins) {
        const nb::handle one = (*records)[record];
        if (begins)
          one.attr("__enter__")();
        else
          one.attr("__exit__")(nb::none(), nb::none(), nb::none());
        record += begins ? 0 : 1;
      };
      tape_->run(*frame, arena, threads, caller, &observe);
    } else {
      const nb::gil_scoped_release released;
      tape_->run(*frame, arena, threads, caller, nullptr);
    }
    nb::object results = nb::steal(PyTuple_New(made.size()));
    for (size_t i = 0; i < made.size(); ++i)
      PyTuple_SET_ITEM(results.ptr(), i, made[i].release().ptr());
    return results;
  }

  void read(const ArgumentSlot &slot, nb::handle value, Frame &frame,
            nb::object &kept) const {
    const auto &[kind, at] = slot;
    switch (static_cast<ArgumentKind>(kind)) {
    case ArgumentKind::tensor:
      frame.tensors[at] = reader_.tensor(value, kept);
      break;
    case ArgumentKind::part:
      frame.tensors[at].data = pointer<uint8_t>(TensorReader::address(value));
      break;
    case ArgumentKind::number:
      frame.numbers[at] = nb::cast<int64_t>(value);
      break;
    }
  }

  nb::object owner_; // of the reader
  const TensorReader &reader_;
  std::vector<ArgumentSlot> arguments_;
  std::vector<nb::callable> makers_;
  std::vector<nb::object> kernels_;
  std::shared_ptr<Tape> tape_;
};

} // namespace

void bind_tape(nb::module_ &m) {
  m.def("view_names", [] {
    return std::vector<std::string>(std::begin(kViewNames),
                                    std::end(kViewNames));
  });
  nb::class_<PythonTape>(m, "Tape", "Native steps that are run by one loop.")
      .def(nb::init<nb::object, std::vector<ArgumentSlot>, int, int,
                    std::vector<nb::callable>>(),
           nb::arg("reader"), nb::arg("arguments"), nb::arg("tensors"),
           nb::arg("numbers"), nb::arg("makers"))
      .def("add_kernel", &PythonTape::add_kernel)
      .def("add_view", &PythonTape::add_view)
      .def("add_free", &PythonTape::add_free)
      .def("nbytes", &PythonTape::nbytes,
           "Bytes that calls leave to the next ones.")
      .def(
          "as_step",
          [](nb::object self, int64_t arena, const std::vector<int> &positions,
             const nb::list &known, std::vector<int> results) {
            return nb::cast<const PythonTape &>(self).as_step(
                self, arena, positions, known, std::move(results));
          },
          nb::arg("arena"), nb::arg("positions"), nb::arg("known"),
          nb::arg("results"), "A kernel that runs the steps.")
      .def("__call__", &PythonTape::call,
           "Run the steps on the arena at an address, and the arguments.")
      .def(
          "consume", &PythonTape::consume,
          "The same for the arena's address and the arguments in a list, which "
          "is emptied: arguments are freed after their last use.")
      .def("recorded", &PythonTape::recorded,
           "The same, with a context manager around each kernel: a list of "
           "them comes first.");
}

} // namespace steelyard
