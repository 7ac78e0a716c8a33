// Moving codes: byte transposes and nibbles. Included by kernel sources only.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/simd/simd.h"
#include "cpu/tiles/matrix.h"

namespace steelyard::STEELYARD_ISA {

// Four rounds of zipping row i with row i + 8 transpose 16x16 bytes.
static inline void transpose_16x16(const uint8_t *in, int64_t in_stride,
                                   uint8_t *out, int64_t out_stride) {
  Bytes16 a[16], b[16];
  for (int i = 0; i < 16; ++i)
    a[i] = load<Bytes16>(in + i * in_stride);
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
    store(out + i * out_stride, a[i]);
}

// Streamed stores go to memory past the caches, for results that would only
// push out what is read sooner. They need aligned addresses, and a fence before
// another thread reads them.
static inline bool is_aligned(const void *address) {
  return reinterpret_cast<uintptr_t>(address) % 32 == 0;
}

template <class Bytes>
static inline void put(uint8_t *out, Bytes bytes, bool streamed) {
  if (streamed)
    store_streamed(out, bytes);
  else
    store(out, bytes);
}

static inline void put_row(uint8_t *out, const uint8_t *bytes, int64_t n,
                           bool streamed) {
  int64_t j = 0;
  streamed &= is_aligned(out);
  for (; kHasVectors && j + 32 <= n; j += 32)
    put(out + j, load<Bytes32>(bytes + j), streamed);
  for (; j < n; ++j)
    out[j] = bytes[j];
}

// The same for 32 rows: each half of a vector has 16 of them.
static inline void transpose_32x16(const uint8_t *in, int64_t in_stride,
                                   uint8_t *out, int64_t out_stride) {
  Bytes32 a[16], b[16];
  for (int i = 0; i < 16; ++i)
    a[i] = join(load<Bytes16>(in + i * in_stride),
                load<Bytes16>(in + (i + 16) * in_stride));
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
    store(out + i * out_stride, a[i]);
}

// out[j][i] = in[i][j]; strides in bytes, at most 128 rows. Whole rows of `out`
// are written at once: rows a page apart would evict each other's lines.
static inline void transpose_bytes(const uint8_t *in, int64_t in_stride,
                                   int64_t rows, int64_t columns, uint8_t *out,
                                   int64_t out_stride, bool streamed = false) {
  alignas(64) uint8_t strip[16][kTileSide];
  const int64_t whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
  for (int64_t j = 0; j < whole_columns; j += 16) {
    int64_t i = 0;
    for (; kHasVectors && i + 32 <= whole_rows; i += 32)
      transpose_32x16(in + i * in_stride + j, in_stride, strip[0] + i,
                      kTileSide);
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

// Twice 32 codes as nibbles, two per byte: each half has those of one vector.
static inline Bytes32 pack_nibbles(Bytes32 low, Bytes32 high) {
  // 1 for the code in the low nibble, 16 for the one in the high nibble.
  const SignedBytes32 places =
      as<SignedBytes32>(broadcast(uint16_t{1 | 16 << 8}));
  return in_order_of_2(
      narrow_unsigned(dot_pairs(low, places), dot_pairs(high, places)));
}

// 32 codes as nibbles.
static inline Bytes16 pack_nibbles(Bytes32 codes) {
  return low_half(pack_nibbles(codes, codes));
}

// Two codes per byte along a row; a missing last one is 0.
static inline void pack_row(const uint8_t *codes, int64_t n, uint8_t *out) {
  int64_t j = 0;
  for (; kHasVectors && 2 * j + 32 <= n; j += 16)
    store(out + j, pack_nibbles(load<Bytes32>(codes + 2 * j)));
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
