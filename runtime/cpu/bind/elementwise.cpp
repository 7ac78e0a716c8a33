// Elementwise programs as Python describes them, and bound to calls.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "cpu/bind/bindings.h"
#include "cpu/bind/bound.h"
#include "cpu/tape/elementwise_kernel.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// tensor dim, loop dim, coefficient
using TermArguments = std::tuple<int, int, int64_t>;
// number of the tensor, type, whether it is stored to, terms
using AccessArguments = std::tuple<int, int, bool, std::vector<TermArguments>>;
// operation, dtype, out, three registers, access
using StepArguments = std::tuple<int, int, int, int, int, int, int>;
// sizes, accesses, steps, constants
using LoopArguments =
    std::tuple<std::vector<int64_t>, std::vector<AccessArguments>,
               std::vector<StepArguments>, std::vector<float>>;
constexpr int kMostTensors = ElementwiseKernel::kMostTensors;

bool is_below(int number, size_t count) {
  return number >= 0 && static_cast<size_t>(number) < count;
}

ElementwiseAccess access_of(const AccessArguments &arguments, size_t dims) {
  const auto &[tensor, type, is_store, terms] = arguments;
  require(is_below(tensor, kMostTensors) &&
              is_below(type, std::size(kElementTypeNames)),
          "an access must be of a known tensor and type");
  ElementwiseAccess access{
      tensor, static_cast<ElementType>(type), is_store, {}};
  for (const auto &[tensor_dim, loop_dim, coefficient] : terms) {
    require(is_below(tensor_dim, kMostDims) &&
                (loop_dim == -1 || is_below(loop_dim, dims)),
            "a term must be of known dims");
    access.terms.push_back({tensor_dim, loop_dim, coefficient});
  }
  return access;
}

ElementwiseStep step_of(const StepArguments &arguments, size_t accesses) {
  const auto &[operation, dtype, out, a, b, c, access] = arguments;
  const bool known = is_below(operation, std::size(kOperationNames)) &&
                     is_below(out, kMostRegisters) &&
                     is_below(a, kMostRegisters) &&
                     is_below(b, kMostRegisters) && is_below(c, kMostRegisters);
  require(known, "a step must have a known operation and registers");
  const bool is_access = operation <= static_cast<int>(Operation::store);
  require((access == -1 && !is_access) || is_below(access, accesses),
          "a step must be of a known access");
  return {static_cast<Operation>(operation),
          dtype_of(dtype),
          out,
          {a, b, c},
          access};
}

ElementwiseLoop loop_of(const LoopArguments &arguments) {
  const auto &[sizes, accesses, steps, constants] = arguments;
  require(sizes.size() <= kMostDims && accesses.size() <= kMostAccesses &&
              constants.size() <= kMostRegisters,
          "a loop must fit the kernel");
  ElementwiseLoop loop{
      sizes, {}, {}, constants, static_cast<int>(constants.size())};
  for (const AccessArguments &access : accesses)
    loop.accesses.push_back(access_of(access, sizes.size()));
  for (const StepArguments &step : steps)
    loop.steps.push_back(step_of(step, accesses.size()));
  for (const ElementwiseStep &step : loop.steps)
    loop.registers = std::max(loop.registers, step.out + 1);
  return loop;
}

std::vector<std::string> names_of(const char *const *names, size_t count) {
  return {names, names + count};
}

} // namespace

void bind_elementwise(nb::module_ &m) {
  m.def(
      "element_type_names",
      [] { return names_of(kElementTypeNames, std::size(kElementTypeNames)); },
      "The types of elements that programs load and store, by their numbers.");
  m.def(
      "operation_names",
      [] { return names_of(kOperationNames, std::size(kOperationNames)); },
      "The operations of elementwise programs, by their numbers.");
  m.def(
      "elementwise_limits",
      [] {
        return std::make_tuple(kMostDims, kMostAccesses, kMostRegisters,
                               kMostTensors);
      },
      "The most dims, accesses and registers of a loop, and the most tensors.");
  m.def(
      "bound_elementwise",
      [](nb::object reader, const std::vector<LoopArguments> &loops,
         std::vector<ElementwiseKernel::Place> tensors, int first_size,
         int end_of_sizes) {
        ElementwiseProgram program;
        for (const LoopArguments &loop : loops)
          program.loops.push_back(loop_of(loop));
        return BoundKernel{std::make_shared<ElementwiseKernel>(
                               std::move(program), std::move(tensors),
                               first_size, end_of_sizes),
                           reader, nb::cast<const TensorReader &>(reader)};
      },
      nb::arg("reader"), nb::arg("loops"), nb::arg("tensors"),
      nb::arg("first_size"), nb::arg("end_of_sizes"),
      "Runs an elementwise program.");
}

} // namespace steelyard
