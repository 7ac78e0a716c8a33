// Philox4x32-10: the random bytes of stochastic rounding, a function of seed,
// offset, copy and element alone. Included by kernel sources only.
#pragma once

#include "formats.h"

namespace steelyard::STEELYARD_ISA {

struct PhiloxKey {
  uint64_t seed, offset;
  uint32_t copy; // 0 rowwise, 1 columnwise
};

// The 16 bytes of elements [16 * group, 16 * group + 16).
static inline void philox_group(const PhiloxKey &key, uint64_t group,
                                uint8_t *out) {
  uint32_t c0 = static_cast<uint32_t>(group), c1 = key.copy;
  uint32_t c2 = static_cast<uint32_t>(key.offset),
           c3 = static_cast<uint32_t>(key.offset >> 32);
  uint32_t k0 = static_cast<uint32_t>(key.seed),
           k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint32_t words[4] = {c0, c1, c2, c3};
  for (int i = 0; i < 16; ++i)
    out[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
}

// The bytes of n elements from `first`, `stride` apart. `scratch` holds n + 32;
// returns where the bytes start in it.
static inline const uint8_t *philox_bytes(const PhiloxKey &key, uint64_t first,
                                          int64_t stride, int64_t n,
                                          uint8_t *scratch) {
  if (stride == 1) {
    const uint64_t begin = first / 16, end = (first + n + 15) / 16;
    for (uint64_t group = begin; group < end; ++group)
      philox_group(key, group, scratch + (group - begin) * 16);
    return scratch + first % 16;
  }
  for (int64_t j = 0; j < n; ++j) {
    uint8_t group[16];
    philox_group(key, (first + j * stride) / 16, group);
    scratch[j] = group[(first + j * stride) % 16];
  }
  return scratch;
}

} // namespace steelyard::STEELYARD_ISA
