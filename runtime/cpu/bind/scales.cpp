// Work on scales alone, too small for threads: the layout of GPU GEMMs and the
// state of delayed scaling.
#include "cpu/bind/bindings.h"

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

// The state of some scales: each has a column of the history, whose rows are
// the slots. Slot 0 holds the newest amax.
struct DelayedState {
  const float *scales, *history;
  float *new_scales, *new_history;
  int64_t length, count;
};

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

// The history rolls by one, its newest slot empty again.
void roll(const DelayedState &state, int64_t column) {
  const int64_t last = (state.length - 1) * state.count + column;
  for (int64_t at = column; at < last; at += state.count)
    state.new_history[at] = state.history[at + state.count];
  state.new_history[last] = state.history[column];
  state.new_history[column] = 0.0f;
}

void keep(const DelayedState &state, int64_t column) {
  state.new_scales[column] = state.scales[column];
  for (int64_t i = 0; i < state.length; ++i)
    state.new_history[i * state.count + column] =
        state.history[i * state.count + column];
}

// NaN is ignored.
float largest_of(const DelayedState &state, int64_t column) {
  float largest = state.history[column];
  for (int64_t i = 1; i < state.length; ++i)
    largest = std::fmax(largest, state.history[i * state.count + column]);
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
      "update_scales",
      [](const StateArguments &arguments, uintptr_t picked, bool most_recent,
         float element_max, float epsilon, bool power_of_two) {
        FloatEnvironment environment;
        const DelayedState state = state_of(arguments);
        const float *amaxes = pointer<const float>(picked);
        for (int64_t c = 0; c < state.count; ++c) {
          const float newest = state.history[c];
          if (newest == 0) {
            keep(state, c);
            continue;
          }
          const float amax = amaxes        ? amaxes[c]
                             : most_recent ? newest
                                           : largest_of(state, c);
          roll(state, c);
          state.new_scales[c] = scale_from_amax(
              amax, element_max, epsilon, power_of_two,
              std::numeric_limits<float>::max(), state.scales[c]);
        }
      },
      "Scales and histories of the next step, by the amaxes that were picked, "
      "the newest ones, or the largest of each history.");
}

} // namespace steelyard
