#include "cpu/quantize/delayed.h"

#include <cmath>
#include <limits>

#include "cpu/formats/scale_rules.h"
#include "cpu/simd/float_environment.h"

namespace steelyard {
namespace {

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

void update_scales(const DelayedState &state, const float *picked,
                   const DelayedRule &rule) {
  FloatEnvironment environment;
  for (int64_t c = 0; c < state.count; ++c) {
    const float newest = state.history[c];
    if (newest == 0) {
      keep(state, c);
      continue;
    }
    const float amax = picked             ? picked[c]
                       : rule.most_recent ? newest
                                          : largest_of(state, c);
    roll(state, c);
    state.new_scales[c] =
        scale_from_amax(amax, rule.element_max, rule.epsilon, rule.power_of_two,
                        std::numeric_limits<float>::max(), state.scales[c]);
  }
}

} // namespace steelyard
