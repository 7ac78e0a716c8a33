// The functions that register each kernel family in steelyard.runtime._cpu.
//
// Tensors come as integers (data_ptr), shapes and strides: an ndarray argument
// costs twenty times as much. Python has checked every one of them.
#pragma once

#include <nanobind/nanobind.h>

namespace steelyard {

void bind_amax(nanobind::module_ &m);

} // namespace steelyard
