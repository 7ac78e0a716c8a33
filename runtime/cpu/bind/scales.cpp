// Work on scales alone, too small for threads: the layout of GPU GEMMs and the
// state of delayed scaling.
#include "cpu/bind/bindings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/bind/arguments.h"
#include "cpu/formats/scale_rules.h"
#include "cpu/simd/float_environment.h"

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

struct History {
  const float *in;
  float *out;
  int64_t length;
};

History history_of(uintptr_t in, float *out, int64_t length) {
  require(length > 0, "a history must have at least one slot");
  return {memory<const float>(in), out, length};
}

// The history rolls by one, its newest slot empty again.
void roll(const History &history) {
  std::copy(history.in + 1, history.in + history.length, history.out);
  history.out[history.length - 1] = history.in[0];
  history.out[0] = 0.0f;
}

float largest_of(const History &history) {
  float largest = history.in[0];
  for (int64_t i = 1; i < history.length; ++i)
    largest = std::fmax(largest, history.in[i]);
  return largest;
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
      "largest",
      [](uintptr_t in, int64_t length) {
        return largest_of(history_of(in, nullptr, length));
      },
      "Largest value of a history, NaN ignored.");
  m.def(
      "update_scale",
      [](float amax, float old_scale, float element_max, float epsilon,
         bool power_of_two, uintptr_t in, uintptr_t out, int64_t length) {
        FloatEnvironment environment;
        roll(history_of(in, memory<float>(out), length));
        return scale_from_amax(amax, element_max, epsilon, power_of_two,
                               std::numeric_limits<float>::max(), old_scale);
      },
      "Roll an amax history and return the scale that its amax gives.");
}

} // namespace steelyard
