// The state of delayed scaling: the scales of a step, and the amaxes that they
// follow from.
#pragma once

#include <cstdint>

namespace steelyard {

// Each scale has a column of the history, whose rows are the slots. Slot 0
// holds the newest amax.
struct DelayedState {
  const float *scales, *history;
  float *new_scales, *new_history;
  int64_t length, count;
};

// How a scale follows from its history.
struct DelayedRule {
  bool most_recent; // the newest amax instead of the largest
  float element_max, epsilon;
  bool power_of_two;
};

// Makes the scales and histories of the next step, by the amaxes that `picked`
// holds, if it is not null. A column whose newest amax is 0 stays as it is.
void update_scales(const DelayedState &state, const float *picked,
                   const DelayedRule &rule);

} // namespace steelyard
