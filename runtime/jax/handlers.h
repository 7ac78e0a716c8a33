// The handlers that steelyard.jax registers with XLA, by name.
#pragma once

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace steelyard {

struct Handler {
  const char *name;
  XLA_FFI_Handler *function;
};

std::vector<Handler> plain_handlers();
std::vector<Handler> grouped_handlers();

} // namespace steelyard
