// A kernel of a compiled program, and what reads its values when Python calls
// it.
#pragma once

#include <memory>

#include "cpu/bind/tensors.h"
#include "cpu/tape/kernel.h"

namespace steelyard {

struct BoundKernel {
  std::shared_ptr<const Kernel> kernel;
  nanobind::object owner; // of the reader
  const TensorReader &reader;

  void operator()(const nanobind::args &values) const;
};

} // namespace steelyard
