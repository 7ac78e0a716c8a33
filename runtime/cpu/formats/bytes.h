// Moving codes: byte transposes and nibbles. Included by kernel sources only.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/formats/casts.h"
#include "cpu/tiles/matrix.h"

namespace steelyard::STEELYARD_ISA {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

static inline Bytes16 zip_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                 6, 22, 7, 23);
}

static inline Bytes16 zip_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                 29, 14, 30, 15, 31);
}

// Four rounds of zipping row i with row i + 8 transpose 16x16 bytes.
static inline void transpose_16x16(const uint8_t *in, int64_t in_stride,
                                   uint8_t *out, int64_t out_stride) {
  Bytes16 a[16], b[16];
  for (int i = 0; i < 16; ++i)
    std::memcpy(&a[i], in + i * in_stride, 16);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = zip_low(a[i], a[i + 8]);
      b[2 * i + 1] = zip_high(a[i], a[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = zip_low(b[i], b[i + 8]);
      a[2 * i + 1] = zip_high(b[i], b[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i)
    std::memcpy(out + i * out_stride, &a[i], 16);
}

// Streamed stores go to memory past the caches, for results that would only
// push out what is read sooner. They need aligned addresses, and a fence before
// another thread reads them.
static inline bool is_aligned(const void *address) {
  return reinterpret_cast<uintptr_t>(address) % 32 == 0;
}

#if defined(__AVX2__)
static inline void put_32(uint8_t *out, __m256i bytes, bool streamed) {
  __m256i *target = reinterpret_cast<__m256i *>(out);
  if (streamed)
    _mm256_stream_si256(target, bytes);
  else
    _mm256_storeu_si256(target, bytes);
}

static inline void put_16(uint8_t *out, __m128i bytes, bool streamed) {
  __m128i *target = reinterpret_cast<__m128i *>(out);
  if (streamed)
    _mm_stream_si128(target, bytes);
  else
    _mm_storeu_si128(target, bytes);
}
#endif

static inline void put_row(uint8_t *out, const uint8_t *bytes, int64_t n,
                           [[maybe_unused]] bool streamed) {
  int64_t j = 0;
#if defined(__AVX2__)
  streamed &= is_aligned(out);
  for (; j + 32 <= n; j += 32)
    put_32(out + j,
           _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bytes + j)),
           streamed);
#endif
  for (; j < n; ++j)
    out[j] = bytes[j];
}

static inline void end_streams() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

#if defined(__AVX2__)
// The same for 32 rows: each half of a register has 16 of them.
static inline void transpose_32x16(const uint8_t *in, int64_t in_stride,
                                   uint8_t *out, int64_t out_stride) {
  const auto load = [=](int i) {
    return _mm_loadu_si128(
        reinterpret_cast<const __m128i *>(in + i * in_stride));
  };
  __m256i a[16], b[16];
  for (int i = 0; i < 16; ++i)
    a[i] = _mm256_set_m128i(load(i + 16), load(i));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm256_unpacklo_epi8(a[i], a[i + 8]);
      b[2 * i + 1] = _mm256_unpackhi_epi8(a[i], a[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = _mm256_unpacklo_epi8(b[i], b[i + 8]);
      a[2 * i + 1] = _mm256_unpackhi_epi8(b[i], b[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i * out_stride),
                        a[i]);
}
#endif

// out[j][i] = in[i][j]; strides in bytes, at most 128 rows. Whole rows of `out`
// are written at once: rows a page apart would evict each other's lines.
static inline void transpose_bytes(const uint8_t *in, int64_t in_stride,
                                   int64_t rows, int64_t columns, uint8_t *out,
                                   int64_t out_stride,
                                   [[maybe_unused]] bool streamed = false) {
  alignas(64) uint8_t strip[16][kTileSide];
  const int64_t whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
  for (int64_t j = 0; j < whole_columns; j += 16) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 32 <= whole_rows; i += 32)
      transpose_32x16(in + i * in_stride + j, in_stride, strip[0] + i,
                      kTileSide);
#endif
    for (; i < whole_rows; i += 16)
      transpose_16x16(in + i * in_stride + j, in_stride, strip[0] + i,
                      kTileSide);
    for (int64_t k = 0; k < 16; ++k)
      put_row(out + (j + k) * out_stride, strip[k], whole_rows, streamed);
  }
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; ++i)
      out[j * out_stride + i] = in[i * in_stride + j];
}

#if defined(__AVX2__)
// Nibbles of twice 32 codes, two a byte: each half has those of one.
static inline __m256i pack_nibbles(__m256i low, __m256i high) {
  const __m256i places = _mm256_set1_epi16(0x1001);
  const __m256i packed = _mm256_packus_epi16(
      _mm256_maddubs_epi16(low, places), _mm256_maddubs_epi16(high, places));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}

// Nibbles of 32 codes.
static inline __m128i pack_nibbles(__m256i codes) {
  return _mm256_castsi256_si128(pack_nibbles(codes, codes));
}
#endif

// Two codes a byte along a row; a missing last one is 0.
static inline void pack_row(const uint8_t *codes, int64_t n, uint8_t *out) {
  int64_t j = 0;
#if defined(__AVX2__)
  for (; 2 * j + 32 <= n; j += 16)
    put_16(out + j,
           pack_nibbles(_mm256_loadu_si256(
               reinterpret_cast<const __m256i *>(codes + 2 * j))),
           false);
#endif
  for (; j < n / 2; ++j)
    out[j] = static_cast<uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
  if (n % 2)
    out[n / 2] = codes[n - 1];
}

static inline void unpack_row(const uint8_t *packed, int64_t n,
                              uint8_t *codes) {
  for (int64_t j = 0; j < n / 2; ++j) {
    codes[2 * j] = packed[j] & 15;
    codes[2 * j + 1] = packed[j] >> 4;
  }
  if (n % 2)
    codes[n - 1] = packed[n / 2] & 15;
}

} // namespace steelyard::STEELYARD_ISA
