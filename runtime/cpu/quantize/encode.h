// Loops that encode rows of a tile. Included by kernel sources only.
#pragma once

#include <type_traits>

#include "cpu/formats/bytes.h"
#include "cpu/quantize/encode_vectors.h"
#include "cpu/quantize/quantize.h"
#include "cpu/tiles/upcoming.h"

namespace steelyard::STEELYARD_ISA {

struct alignas(64) CodeTile {
  uint8_t values[kTileSide][kTileSide];
};

template <class Format, Range range = Range::any, class Element>
static inline void encode_row(const Element *x, int64_t n, float scale,
                              uint8_t *out, bool streamed = false) {
  int64_t j = 0;
  const Encoder<Format, range> encoder(scale);
  streamed &= is_aligned(out);
  for (; kHasVectors && j + 32 <= n; j += 32)
    put(out + j, encoder.encode_32(x + j), streamed);
  for (; j < n; ++j)
    out[j] =
        static_cast<uint8_t>(encode<Format>(widen(x[j], Dtype::bf16) * scale));
}

// The same into two places: `kept` is read again soon.
template <class Format, Range range, class Element>
static inline void encode_row_twice(const Element *x, int64_t n, float scale,
                                    uint8_t *out, uint8_t *kept,
                                    bool streamed) {
  int64_t j = 0;
  const Encoder<Format, range> encoder(scale);
  const auto encode_whole = [&](auto is_streamed) {
    for (; kHasVectors && j + 32 <= n; j += 32) {
      const Bytes32 codes = encoder.encode_32(x + j);
      store(kept + j, codes);
      put(out + j, codes, is_streamed);
    }
  };
  if (streamed && is_aligned(out))
    encode_whole(std::true_type{});
  else
    encode_whole(std::false_type{});
  if (j < n) {
    encode_row<Format, range>(x + j, n - j, scale, kept + j);
    std::memcpy(out + j, kept + j, n - j);
  }
}

// One scale per column.
template <class Format, Range range = Range::any, class Element>
static inline void encode_row_by(const Element *x, int64_t n,
                                 const float *scales, uint8_t *out,
                                 bool streamed = false) {
  int64_t j = 0;
  streamed &= is_aligned(out);
  for (; kHasVectors && j + 32 <= n; j += 32)
    put(out + j, encode_32_by<Format, range>(x + j, scales + j), streamed);
  for (; j < n; ++j)
    out[j] = static_cast<uint8_t>(
        encode<Format>(widen(x[j], Dtype::bf16) * scales[j]));
}

// The same for rows of a column's block, whose scales are powers of two:
// `shifts` are theirs, or null where 16 bits do not suffice.
template <class Format, Range range>
static inline void
encode_row_by_shifts(const uint16_t *x, int64_t n, const float *scales,
                     const uint16_t *shifts, uint8_t *out, bool streamed) {
  int64_t j = 0;
  const bool is_streamed = streamed && is_aligned(out);
  for (; kHasVectors && shifts && j + 32 <= n; j += 32) {
    Bytes32 codes;
    if (__builtin_expect(
            !encode_narrow<Format>(x + j, load<Halves16>(shifts + j),
                                   load<Halves16>(shifts + j + 16), codes),
            0))
      codes = encode_32_by<Format, range>(x + j, scales + j);
    put(out + j, codes, is_streamed);
  }
  encode_row_by<Format, range>(x + j, n - j, scales + j, out + j, streamed);
}

// One scale per block of `Block` columns; the last block may be short.
template <class Format, int Block, Range range, class Element>
static inline void encode_blocks(const Element *x, int64_t n,
                                 const float *scales, uint8_t *out,
                                 bool streamed = false) {
  for (int64_t j = 0; j < n; j += Block)
    encode_row<Format, range>(x + j, smaller(Block, n - j), scales[j / Block],
                              out + j, streamed);
}

// Where row i of a tile starts among codes of one byte that keep its layout.
static inline uint8_t *codes_at(const CopyCall &copy, const TilePlace &tile,
                                int64_t i) {
  return copy.codes + (tile.row + i) * copy.codes_stride + tile.column;
}

// Chooses the encoding by the bits of an amax: `bounded` says that it bounds
// scaled values, if it is finite.
template <class F>
static inline void with_range(int32_t amax, bool bounded, const F &encode) {
  constexpr int32_t infinity = static_cast<int32_t>(kInfinity);
  if (bounded && amax < infinity)
    encode(std::integral_constant<Range, Range::bounded>{});
  else if (amax <= infinity)
    encode(std::integral_constant<Range, Range::numbers>{});
  else
    encode(std::integral_constant<Range, Range::any>{});
}

static inline int32_t largest_of(const int32_t *amax, int64_t n) {
  int32_t largest = 0;
  for (int64_t j = 0; j < n; ++j)
    largest = amax[j] > largest ? amax[j] : largest;
  return largest;
}

// The same in E2M1, 16 or 32 columns per scale, two codes per byte.
template <Range range, int Block = 16, class Element>
static inline void encode_e2m1_blocks(const Element *x, int64_t n,
                                      const float *scales, uint8_t *out,
                                      bool streamed = false) {
  int64_t j = 0;
  streamed &= is_aligned(out);
  for (Floats8 values[4]; kHasVectors && j + 32 <= n; j += 32) {
    multiply_32(x + j, broadcast(scales[j / Block]),
                broadcast(scales[(j + 16) / Block]), values);
    put(out + j / 2, pack_nibbles(encode_32<E2M1, range>(values)), streamed);
  }
  for (uint8_t codes[16]; j < n; j += 16) {
    const int64_t columns = smaller(16, n - j);
    encode_row<E2M1>(x + j, columns, scales[j / Block], codes);
    pack_row(codes, columns, out + j / 2);
  }
}

// Bits of the amax of each block of `Block` columns; the last may be short.
template <int Block, class Element>
static inline void amax_blocks(const Element *x, int64_t n, int32_t *amax) {
  int64_t j = 0;
  for (; kHasVectors && j + 8 * Block <= n; j += 8 * Block)
    store(amax + j / Block, amax_8_blocks<Block>(x + j));
  for (; j < n; j += Block)
    amax[j / Block] =
        static_cast<int32_t>(amax_bits(x + j, smaller(Block, n - j)));
}

// Bits of the amax of each column of `rows` rows from `first`.
template <class Element>
static inline void amax_of_columns(const TileOf<Element> &tile, int64_t first,
                                   int64_t rows, int32_t *amax) {
  int64_t j = 0;
  for (; kHasVectors && j + 32 <= tile.columns; j += 32)
    amax_32_columns(tile.at(first) + j, tile.stride, rows, amax + j);
  std::memset(amax + j, 0, (tile.columns - j) * sizeof *amax);
  for (int64_t i = first; i < first + rows; ++i)
    amax_columns(tile.at(i) + j, tile.columns - j, amax + j);
}

// Blocks of columns: amax[b] = max of amax[b * Block ..].
template <int Block> static inline void fold_columns(int32_t *amax, int64_t n) {
  for (int64_t b = 0; b * Block < n; ++b) {
    int32_t largest = 0;
    for (int64_t j = b * Block; j < smaller((b + 1) * Block, n); ++j)
      largest = amax[j] > largest ? amax[j] : largest;
    amax[b] = largest;
  }
}

// Encodes the tile with one scale into both copies; a width that is known when
// this is compiled is faster.
template <class Format, Range range, class Element, class Columns>
static inline void encode_tile_twice(const TileOf<Element> &tile,
                                     Columns columns, float scale,
                                     const CopyCall &row, CodeTile &codes) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    encode_row_twice<Format, range>(tile.at(i), columns, scale,
                                    codes_at(row, tile, i), codes.values[i],
                                    row.streamed);
    bring_next(tile);
  }
}

// Encodes the tile with one scale, into the rows of one copy, the transposed
// rows of the other, or both.
template <class Format, Range range = Range::any, class Element>
static inline void encode_tile(const TileOf<Element> &tile, float scale,
                               const CopyCall *row, const CopyCall *col) {
  CodeTile codes;
  using WholeColumns = std::integral_constant<int64_t, kTileSide>;
  if (row && col && tile.columns == kTileSide)
    encode_tile_twice<Format, range>(tile, WholeColumns{}, scale, *row, codes);
  else if (row && col)
    encode_tile_twice<Format, range>(tile, tile.columns, scale, *row, codes);
  for (int64_t i = 0; !(row && col) && i < tile.rows; ++i) {
    uint8_t *out = col ? codes.values[i] : codes_at(*row, tile, i);
    for_pieces(tile, [&](int64_t j, int64_t n) {
      encode_row<Format, range>(tile.at(i) + j, n, scale, out + j,
                                !col && row->streamed);
    });
  }
  if (col)
    transpose_bytes(codes.values[0], kTileSide, tile.rows, tile.columns,
                    col->codes + tile.column * col->codes_stride + tile.row,
                    col->codes_stride, col->streamed);
}

static inline void store_float(const CopyCall &copy, int64_t row,
                               int64_t column, float value) {
  std::memcpy(copy.scales + row * copy.scales_stride + column * sizeof value,
              &value, sizeof value);
}

} // namespace steelyard::STEELYARD_ISA
