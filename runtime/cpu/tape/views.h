// Views of tensors: other sizes and strides on the same memory. Dims and
// indices count from the end where they are negative, as torch's do.
#pragma once

#include <span>

#include "cpu/tape/tensor.h"

namespace steelyard {

enum class View : int {
  expand,
  permute,
  reshape,
  select,
  slice,
  squeeze,
  transpose,
  unsqueeze
};

// In the order of the enum: what Python calls them.
inline constexpr const char *kViewNames[] = {"expand",    "permute",  "reshape",
                                             "select",    "slice",    "squeeze",
                                             "transpose", "unsqueeze"};

// The numbers are those of torch's op: dims, indices or sizes. None if the
// elements must be copied first, which only a reshape needs; a contiguous
// tensor never does.
std::optional<Tensor> view_of(View view, const Tensor &x,
                              std::span<const int64_t> numbers);

} // namespace steelyard
