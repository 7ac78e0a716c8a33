// E8M0 scales of blocks. Included by kernel sources only.
#pragma once

#include "cpu/formats/scale_rules.h"

namespace steelyard::STEELYARD_ISA {

template <class Format, Rule rule>
static inline void scale_blocks_by(const int32_t *amax, int64_t n,
                                   uint8_t *__restrict bytes,
                                   float *__restrict factors) {
  // Two loops: in one, the compiler threads branches and does not vectorize.
  for (int64_t b = 0; b < n; ++b)
    bytes[b] = static_cast<uint8_t>(e8m0_from_amax<Format, rule>(amax[b]));
  for (int64_t b = 0; b < n; ++b)
    factors[b] = e8m0_encode_factor(bytes[b]);
}

// Scale bytes and encode factors of n blocks. Not inline: where n is small, g++
// warns of vectors that it never writes.
template <class Format>
[[gnu::noinline]] static void scale_blocks(const int32_t *amax, int64_t n,
                                           Rule rule, uint8_t *bytes,
                                           float *factors) {
  switch (rule) {
  case Rule::rceil:
    return scale_blocks_by<Format, Rule::rceil>(amax, n, bytes, factors);
  case Rule::floor:
    return scale_blocks_by<Format, Rule::floor>(amax, n, bytes, factors);
  case Rule::ceil:
    return scale_blocks_by<Format, Rule::ceil>(amax, n, bytes, factors);
  case Rule::even:
    return scale_blocks_by<Format, Rule::even>(amax, n, bytes, factors);
  }
}

} // namespace steelyard::STEELYARD_ISA
