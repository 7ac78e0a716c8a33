// Philox4x32-10: the random bytes of stochastic rounding, a function of seed,
// offset, copy and element alone. Included by kernel sources only.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

struct PhiloxKey {
  uint64_t seed, offset;
  uint32_t copy; // 0 rowwise, 1 columnwise
};

static constexpr int kPhiloxLanes = 4;
static constexpr int kPhiloxSlack = 16 * (kPhiloxLanes + 1);
static constexpr uint32_t kPhiloxMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
static constexpr uint32_t kPhiloxKeySteps[] = {0x9E3779B9u, 0xBB67AE85u};

// The 16 bytes of each of the groups [first, first + 4) of 16 elements. One
// group per 64-bit lane; the products ignore what is left in the upper halves.
static inline void philox_4_groups(const PhiloxKey &key, uint64_t first,
                                   uint8_t *out) {
  Longs4 c0 = broadcast(first) + Longs4{0, 1, 2, 3};
  Longs4 c1 = broadcast(uint64_t{key.copy});
  Longs4 c2 = broadcast(key.offset & 0xffffffff),
         c3 = broadcast(key.offset >> 32);
  const Longs4 m0 = broadcast(uint64_t{kPhiloxMultipliers[0]}),
               m1 = broadcast(uint64_t{kPhiloxMultipliers[1]});
  uint32_t k0 = static_cast<uint32_t>(key.seed),
           k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10;
       ++round, k0 += kPhiloxKeySteps[0], k1 += kPhiloxKeySteps[1]) {
    const Longs4 p0 = multiply_low_words(c0, m0),
                 p1 = multiply_low_words(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ broadcast(uint64_t{k0});
    c2 = (p0 >> 32) ^ c3 ^ broadcast(uint64_t{k1});
    c1 = p1;
    c3 = p0;
  }
  const Longs4 low =
      as<Longs4>(alternate(as<Words8>(c0), as<Words8>(c1 << 32)));
  const Longs4 high =
      as<Longs4>(alternate(as<Words8>(c2), as<Words8>(c3 << 32)));
  const Words8 even = as<Words8>(zip_low(low, high)),
               odd = as<Words8>(zip_high(low, high));
  store(out, join_low(even, odd));
  store(out + 32, join_high(even, odd));
}

static inline void philox_group(const PhiloxKey &key, uint64_t group,
                                uint8_t *out) {
  uint32_t c[4] = {static_cast<uint32_t>(group), key.copy,
                   static_cast<uint32_t>(key.offset),
                   static_cast<uint32_t>(key.offset >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key.seed),
           k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10;
       ++round, k0 += kPhiloxKeySteps[0], k1 += kPhiloxKeySteps[1]) {
    const uint64_t p0 = static_cast<uint64_t>(c[0]) * kPhiloxMultipliers[0];
    const uint64_t p1 = static_cast<uint64_t>(c[2]) * kPhiloxMultipliers[1];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(p0);
  }
  for (int i = 0; i < 16; ++i)
    out[i] = static_cast<uint8_t>(c[i / 4] >> (8 * (i % 4)));
}

static inline void philox_groups(const PhiloxKey &key, uint64_t first,
                                 uint8_t *out) {
  if (kHasVectors)
    return philox_4_groups(key, first, out);
  for (int lane = 0; lane < kPhiloxLanes; ++lane)
    philox_group(key, first + lane, out + 16 * lane);
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
