// Philox4x32-10: the random bytes of stochastic rounding, a function of seed,
// offset, copy and element alone. Included by kernel sources only.
#pragma once

#include "cpu/formats/casts.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace steelyard::STEELYARD_ISA {

struct PhiloxKey {
  uint64_t seed, offset;
  uint32_t copy; // 0 rowwise, 1 columnwise
};

static constexpr int kPhiloxLanes = 4;
static constexpr int kPhiloxSlack = 16 * (kPhiloxLanes + 1);
static constexpr uint32_t kPhiloxMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
static constexpr uint32_t kPhiloxKeySteps[] = {0x9E3779B9u, 0xBB67AE85u};

#if defined(__AVX2__)

// The 16 bytes of each of the groups [first, first + 4) of 16 elements. One
// group a 64-bit lane; the products ignore what is left in the upper halves.
static inline void philox_groups(const PhiloxKey &key, uint64_t first,
                                 uint8_t *out) {
  __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x(first),
                                _mm256_setr_epi64x(0, 1, 2, 3));
  __m256i c1 = _mm256_set1_epi64x(key.copy);
  __m256i c2 = _mm256_set1_epi64x(key.offset & 0xffffffff),
          c3 = _mm256_set1_epi64x(key.offset >> 32);
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxMultipliers[0]),
                m1 = _mm256_set1_epi64x(kPhiloxMultipliers[1]);
  uint32_t k0 = static_cast<uint32_t>(key.seed),
           k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10;
       ++round, k0 += kPhiloxKeySteps[0], k1 += kPhiloxKeySteps[1]) {
    const __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1),
                          _mm256_set1_epi64x(k0));
    c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3),
                          _mm256_set1_epi64x(k1));
    c1 = p1;
    c3 = p0;
  }
  const __m256i low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
  const __m256i high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(low, high),
                odd = _mm256_unpackhi_epi64(low, high);
  __m256i *words = reinterpret_cast<__m256i *>(out);
  _mm256_storeu_si256(words, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(words + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

#else

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
  for (int lane = 0; lane < kPhiloxLanes; ++lane)
    philox_group(key, first + lane, out + 16 * lane);
}

#endif

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
