// Work on scales alone, too small for threads: the layout of GPU GEMMs and the
// state of delayed scaling.
#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"
#include "cpu/quantize/delayed.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// Tiles of 128x4 scales, 512 bytes each: 32 rows of 16 bytes, each row four
// groups of four. Strides in bytes; `out` is zeroed.
void swizzle(const uint8_t *scales, int64_t rows, int64_t columns,
             int64_t row_stride, int64_t column_stride, uint8_t *out) {
  const int64_t tiles = (columns + 3) / 4;
  for (int64_t i = 0; i < rows; ++i) {
    uint8_t *line =
        out + i / 128 * tiles * 512 + i % 32 * 16 + i % 128 / 32 * 4;
    for (int64_t j = 0; j < columns; ++j)
      line[j / 4 * 512 + j % 4] = scales[i * row_stride + j * column_stride];
  }
}

// scales, history, new scales, new history, length, count
using StateArguments =
    std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t>;

DelayedState state_of(const StateArguments &arguments) {
  const auto &[scales, history, new_scales, new_history, length, count] =
      arguments;
  require(length > 0, "a history must have at least one slot");
  return {memory<const float>(scales),
          memory<const float>(history),
          memory<float>(new_scales),
          memory<float>(new_history),
          length,
          count};
}

} // namespace

void bind_scales(nb::module_ &m) {
  m.def(
      "swizzle",
      [](uintptr_t scales, int64_t rows, int64_t columns, int64_t row_stride,
         int64_t column_stride, uintptr_t out) {
        nb::gil_scoped_release release;
        const bool empty = is_empty(rows, columns);
        swizzle(memory<const uint8_t>(scales, empty), rows, columns, row_stride,
                column_stride, memory<uint8_t>(out, empty));
      },
      "Scale bytes in the order that GPU GEMMs read, into zeroed memory.");
  m.def(
      "update_scales",
      [](const StateArguments &arguments, uintptr_t picked, bool most_recent,
         float element_max, float epsilon, bool power_of_two) {
        update_scales(state_of(arguments), pointer<const float>(picked),
                      {most_recent, element_max, epsilon, power_of_two});
      },
      "Scales and histories of the next step, by the amaxes that were picked, "
      "the newest ones, or the largest of each history.");
}

} // namespace steelyard
