// A tile of the source as contiguous rows of float32. Included by kernel
// sources only.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/quantize/amax_vectors.h"
#include "cpu/tiles/matrix.h"

namespace steelyard::STEELYARD_ISA {

struct Upcoming;

struct TilePlace {
  int64_t stride;      // elements from row to row
  int64_t row, column; // of the first element in the matrix
  int64_t rows, columns;
  bool amax_known; // found while the tile was staged
  uint32_t amax;   // as bits
  Upcoming *next;  // brought nearer while this one is encoded; null if none
};

template <class T> struct TileOf : TilePlace {
  using Element = T;
  const Element *data; // row `i` starts at data + i * stride

  const Element *at(int64_t i) const { return data + i * stride; }
};

using Tile = TileOf<float>;
// Of bf16 as it is stored.
using NarrowTile = TileOf<uint16_t>;

struct alignas(64) Staging {
  float values[kTileElements];
};

static inline float widen(float value, Dtype) { return value; }
static inline float widen(uint16_t value, Dtype dtype) {
  return dtype == Dtype::bf16 ? from_bf16(value) : from_f16(value);
}

template <class Load>
static inline uint32_t copy_values(int64_t n, float *__restrict out,
                                   const Load &load) {
  int32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    const float value = load(j);
    const int32_t magnitude = static_cast<int32_t>(bits_of(value) & kAbsMask);
    largest = magnitude > largest ? magnitude : largest;
    out[j] = value;
  }
  return static_cast<uint32_t>(largest);
}

// A row as float32, and the bits of its amax.
static inline uint32_t widen_row(const void *source, Dtype dtype, int64_t n,
                                 float *out) {
  const float *floats = static_cast<const float *>(source);
  const uint16_t *halves = static_cast<const uint16_t *>(source);
  if (dtype == Dtype::f32)
    return copy_values(n, out, [=](int64_t j) { return floats[j]; });
  if (dtype == Dtype::bf16)
    return copy_values(n, out, [=](int64_t j) { return from_bf16(halves[j]); });
  return copy_values(n, out, [=](int64_t j) { return from_f16(halves[j]); });
}

// Rounded to a dtype; `out` has no alignment beyond its own.
static inline void store_row(const float *values, int64_t n, Dtype dtype,
                             void *out) {
  if (dtype == Dtype::f32) {
    std::memcpy(out, values, n * sizeof *values);
    return;
  }
  uint16_t *halves = static_cast<uint16_t *>(out);
  if (dtype == Dtype::bf16)
    for (int64_t j = 0; j < n; ++j)
      halves[j] = to_bf16(values[j]);
  else
    for (int64_t j = 0; j < n; ++j)
      halves[j] = to_f16(values[j]);
}

// Strided elements: read down the smaller stride, in squares that stay in
// cache.
template <class Element>
static inline void gather(const Matrix &x, const TilePlace &tile, float *out) {
  constexpr int64_t side = 16;
  const Element *base = static_cast<const Element *>(x.data) +
                        tile.row * x.row_stride + tile.column * x.column_stride;
  for (int64_t j0 = 0; j0 < tile.columns; j0 += side)
    for (int64_t i0 = 0; i0 < tile.rows; i0 += side)
      for (int64_t j = j0; j < smaller(j0 + side, tile.columns); ++j)
        for (int64_t i = i0; i < smaller(i0 + side, tile.rows); ++i)
          out[i * tile.stride + j] =
              widen(base[i * x.row_stride + j * x.column_stride], x.dtype);
}

// Where tile `index` of a matrix of this size lies; its data is not there yet.
static inline TilePlace locate_tile(const Tiling &tiling, int64_t rows,
                                    int64_t columns, int64_t index) {
  TilePlace tile{};
  tile.row = index / tiling.per_row * tiling.rows;
  tile.column = index % tiling.per_row * tiling.columns;
  tile.rows = smaller(tiling.rows, rows - tile.row);
  tile.columns = smaller(tiling.columns, columns - tile.column);
  return tile;
}

// Largest magnitude as float bits, which keeps NaN on top.
static inline uint32_t amax_bits(const uint16_t *bf16, int64_t n) {
  int16_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int16_t magnitude = static_cast<int16_t>(bf16[j] & 0x7fff);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest) << 16;
}

static inline uint32_t amax_bits(const float *x, int64_t n) {
  int32_t largest = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t magnitude = static_cast<int32_t>(bits_of(x[j]) & kAbsMask);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Bits of the largest magnitude of some rows: 32 of float32, 16 of narrower
// elements, whose magnitudes order as integers too.
template <class Integer, class Element>
static inline Integer amax_of_rows(const Element *x, int64_t stride,
                                   int64_t rows, int64_t n) {
  constexpr int sign = 8 * sizeof(Integer) - 1;
  constexpr Integer mask = static_cast<Integer>((int64_t{1} << sign) - 1);
  Integer largest = 0;
  int64_t i = 0;
  // Memory serves several streams faster than one; the processor does not
  // foresee short ones.
  for (; kHasVectors && n % 64 == 0 && i + 4 <= rows; i += 4) {
    const Integer found = amax_of_4_rows<Integer>(
        x + i * stride, stride, n, n <= kTileSide && i + 8 <= rows);
    largest = found > largest ? found : largest;
  }
  for (; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) {
      Integer bits;
      std::memcpy(&bits, x + i * stride + j, sizeof bits);
      bits &= mask;
      largest = bits > largest ? bits : largest;
    }
  return largest;
}

static inline uint32_t amax_of(const Tile &tile) {
  if (tile.amax_known)
    return tile.amax;
  return static_cast<uint32_t>(
      amax_of_rows<int32_t>(tile.data, tile.stride, tile.rows, tile.columns));
}

static inline uint32_t amax_of(const NarrowTile &tile) {
  return static_cast<uint32_t>(amax_of_rows<int16_t>(tile.data, tile.stride,
                                                     tile.rows, tile.columns))
         << 16;
}

// largest[j] = max(largest[j], |x[j]|), as bits.
template <class Element>
static inline void amax_columns(const Element *x, int64_t n, int32_t *largest) {
  for (int64_t j = 0; j < n; ++j) {
    const int32_t magnitude =
        static_cast<int32_t>(bits_of(widen(x[j], Dtype::bf16)) & kAbsMask);
    largest[j] = magnitude > largest[j] ? magnitude : largest[j];
  }
}

static inline void atomic_max(uint32_t *target, uint32_t value) {
  uint32_t seen = __atomic_load_n(target, __ATOMIC_RELAXED);
  while (seen < value &&
         !__atomic_compare_exchange_n(target, &seen, value, true,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

} // namespace steelyard::STEELYARD_ISA
