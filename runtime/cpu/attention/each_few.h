// Rows in groups whose sizes compilers know. Included by kernel sources only.
#pragma once

#include <cstdint>

namespace steelyard::STEELYARD_ISA {

// Calls `f.template operator()<n>(row)` for n rows from each `row`, at most
// `most` at a time.
template <int most, class F>
static inline void each_few(int64_t rows, const F &f) {
  int64_t row = 0;
  for (; row + most <= rows; row += most)
    f.template operator()<most>(row);
  if constexpr (most > 1)
    if (row < rows)
      each_few<most - 1>(rows - row, [&]<int n>(int64_t i) {
        f.template operator()<n>(row + i);
      });
}

} // namespace steelyard::STEELYARD_ISA
