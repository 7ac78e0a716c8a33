// Philox4x32-10: the random bytes of stochastic rounding, a function of seed,
// offset, copy and element alone. Included by kernel sources only.
#pragma once

#include "formats.h"

namespace steelyard::STEELYARD_ISA {

struct PhiloxKey {
  uint64_t seed, offset;
  uint32_t copy; // 0 rowwise, 1 columnwise
};

static constexpr int kPhiloxLanes = 8;
static constexpr int kPhiloxSlack = 16 * (kPhiloxLanes + 1);

static inline void store_little_endian(uint32_t word, uint8_t *out) {
  for (int i = 0; i < 4; ++i)
    out[i] = static_cast<uint8_t>(word >> (8 * i));
}

// The 16 bytes of each of the groups [first, first + 8) of 16 elements, one
// group a lane.
static inline void philox_groups(const PhiloxKey &key, uint64_t first,
                                 uint8_t *out) {
  alignas(64) uint32_t c[4][kPhiloxLanes];
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    c[0][lane] = static_cast<uint32_t>(first) + lane;
    c[1][lane] = key.copy;
    c[2][lane] = static_cast<uint32_t>(key.offset);
    c[3][lane] = static_cast<uint32_t>(key.offset >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed),
           k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int lane = 0; lane < kPhiloxLanes; ++lane) {
      const uint64_t p0 = static_cast<uint64_t>(c[0][lane]) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(c[2][lane]) * 0xCD9E8D57u;
      c[0][lane] = static_cast<uint32_t>(p1 >> 32) ^ c[1][lane] ^ k0;
      c[1][lane] = static_cast<uint32_t>(p1);
      c[2][lane] = static_cast<uint32_t>(p0 >> 32) ^ c[3][lane] ^ k1;
      c[3][lane] = static_cast<uint32_t>(p0);
    }
  for (int lane = 0; lane < kPhiloxLanes; ++lane)
    for (int word = 0; word < 4; ++word)
      store_little_endian(c[word][lane], out + 16 * lane + 4 * word);
}

// The bytes of n elements from `first`, `stride` apart. `scratch` holds n plus
// kPhiloxSlack; returns where the bytes start in it.
static inline const uint8_t *philox_bytes(const PhiloxKey &key, uint64_t first,
                                          int64_t stride, int64_t n,
                                          uint8_t *scratch) {
  if (stride == 1) {
    const uint64_t begin = first / 16, end = (first + n + 15) / 16;
    for (uint64_t group = begin; group < end; group += kPhiloxLanes)
      philox_groups(key, group, scratch + (group - begin) * 16);
    return scratch + first % 16;
  }
  uint8_t groups[16 * kPhiloxLanes];
  for (int64_t j = 0; j < n; ++j) {
    philox_groups(key, (first + j * stride) / 16, groups);
    scratch[j] = groups[(first + j * stride) % 16];
  }
  return scratch;
}

} // namespace steelyard::STEELYARD_ISA
