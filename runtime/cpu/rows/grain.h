// How much of what is computed by rows one thread does at least.
#pragma once

#include <cstdint>

namespace steelyard {

// Elements that are not worth a thread of their own.
inline constexpr int64_t kGrainElements = 1 << 13;

} // namespace steelyard
