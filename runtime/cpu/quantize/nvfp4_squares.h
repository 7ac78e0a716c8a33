// NVFP4 with E4M3 scales per 16x16 tile, whose codes both copies share.
// Included by kernel sources only.
#pragma once

#include "cpu/quantize/nvfp4.h"

namespace steelyard::STEELYARD_ISA {

struct alignas(64) SquareScratch {
  int32_t amax[kTileSide];
  float factors[kTileSide];
  uint8_t bytes[kTileSide / kBlock];
  uint8_t random[kTileSide + kPhiloxSlack];
  HadamardGroup group;
  CodeTile codes;
};

// Codes of a tile into the rows of one copy, the columns of the other, or both.
static void store_squares(const TilePlace &tile, const CodeTile &codes,
                          const CopyCall *row, const CopyCall *col) {
  for (int64_t i = 0; row && i < tile.rows; ++i)
    pack_row(codes.values[i], tile.columns,
             row->codes + (tile.row + i) * row->codes_stride + tile.column / 2);
  if (col)
    store_columns(tile, tile.rows, codes, *col);
}

// Lane 16 * b + i is row i of tile b.
static void choose_squares(const Tile &part, const CopyCall &copy,
                           const TwoLevel &level, const int32_t *amax,
                           uint8_t *bytes, uint8_t (*codes)[kTileSide]) {
  BlockLanes lanes;
  LaneMap best;
  const int64_t blocks = (part.columns + kBlock - 1) / kBlock;
  lanes.count = blocks * kBlock;
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    const int64_t b = lane / kBlock, i = lane % kBlock;
    const int64_t columns = i < part.rows ? part.columns - b * kBlock : 0;
    load_lane(part.data + i * part.stride + b * kBlock, 1, columns, lane,
              lanes);
    lanes.amax[lane] = float_of(amax[b]);
    set_level(lanes, lane, level);
  }
  four_over_six(lanes, true, copy.four_over_six, best);
  for (int64_t b = 0; b < blocks; ++b)
    bytes[b] = best.bytes[b * kBlock];
  for (int64_t i = 0; i < part.rows; ++i)
    for (int64_t j = 0; j < part.columns; ++j)
      codes[i][j] = best.codes[j % kBlock][j / kBlock * kBlock + i];
}

static void encode_squares(const Tile &part, const CopyCall &copy,
                           const TwoLevel &level, SquareScratch &scratch,
                           uint8_t *bytes, uint8_t (*codes)[kTileSide]) {
  float factors[kTileSide / kBlock];
  scale_blocks(scratch.amax, (part.columns + kBlock - 1) / kBlock, level, bytes,
               factors);
  for (int64_t j = 0; j < part.columns; ++j)
    scratch.factors[j] = factors[j / kBlock];
  for (int64_t i = 0; i < part.rows; ++i) {
    if (copy.stochastic)
      encode_row_stochastic(part.at(i), part.columns, scratch.factors,
                            random_bytes(copy, part, i, scratch.random),
                            codes[i]);
    else
      encode_row_by<E2M1>(part.at(i), part.columns, scratch.factors, codes[i]);
  }
}

// Each tile's byte, repeated over the 16 stored rows it covers.
static void store_square_scales(const Tile &part, const uint8_t *bytes,
                                const CopyCall *row, const CopyCall *col) {
  for (int64_t i = 0; row && i < part.rows; ++i)
    std::memcpy(row->scales + (part.row + i) * row->scales_stride +
                    part.column / kBlock,
                bytes, (part.columns + kBlock - 1) / kBlock);
  for (int64_t j = 0; col && j < part.columns; ++j)
    col->scales[(part.column + j) * col->scales_stride + part.row / kBlock] =
        bytes[j / kBlock];
}

// A few bytes into rows `stride` apart.
static void repeat_bytes(const uint8_t *bytes, int64_t n, uint8_t *out,
                         int64_t stride, int64_t rows) {
  constexpr int64_t most = kTileSide / kBlock;
  for (int64_t i = 0; i < rows; ++i)
    if (n == most)
      std::memcpy(out + i * stride, bytes, most);
    else
      std::memcpy(out + i * stride, bytes, n);
}

// The byte of each tile, [rows][columns] of tiles, repeated over the 16 stored
// rows that it covers in either copy.
static void store_all_square_scales(const TilePlace &tile,
                                    const uint8_t (*bytes)[kTileSide / kBlock],
                                    const CopyCall *row, const CopyCall *col) {
  const int64_t down = (tile.rows + kBlock - 1) / kBlock,
                across = (tile.columns + kBlock - 1) / kBlock;
  for (int64_t b = 0; row && b < down; ++b)
    repeat_bytes(bytes[b], across,
                 row->scales + (tile.row + b * kBlock) * row->scales_stride +
                     tile.column / kBlock,
                 row->scales_stride, smaller(kBlock, tile.rows - b * kBlock));
  for (int64_t b = 0; col && b < across; ++b) {
    uint8_t line[kTileSide / kBlock];
    for (int64_t i = 0; i < down; ++i)
      line[i] = bytes[i][b];
    repeat_bytes(line, down,
                 col->scales + (tile.column + b * kBlock) * col->scales_stride +
                     tile.row / kBlock,
                 col->scales_stride,
                 smaller(kBlock, tile.columns - b * kBlock));
  }
}

// Of a tile whose rounding is to the nearest, for each 16x16.
struct alignas(64) SquareScales {
  int32_t amax[kTileSide / kBlock][kTileSide / kBlock];
  float factors[kTileSide / kBlock][kTileSide / kBlock];
};

// Finds the scales of the whole tile at once; bits of its amax.
template <class T>
static int32_t scale_plain_squares(const TileOf<T> &tile, const CopyCall *row,
                                   const CopyCall *col, SquareScales &scales) {
  constexpr int64_t most = kTileSide / kBlock;
  alignas(64) int32_t columns[kTileSide];
  uint8_t bytes[most][most];
  std::memset(scales.amax, 0, sizeof scales.amax);
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    amax_of_columns(tile, first, smaller(kBlock, tile.rows - first), columns);
    fold_columns<kBlock>(columns, tile.columns);
    std::memcpy(scales.amax[first / kBlock], columns,
                (tile.columns + kBlock - 1) / kBlock * sizeof *columns);
  }
  const CopyCall &copy = row ? *row : *col;
  scale_blocks(scales.amax[0], most * most, level_of(copy, 0), bytes[0],
               scales.factors[0]);
  store_all_square_scales(tile, bytes, row, col);
  return largest_of(scales.amax[0], most * most);
}

// Whole tiles into both copies: two rows at a time, which share the bytes of
// the transposed one.
template <Range range, class T>
static void encode_whole_squares(const TileOf<T> &tile,
                                 const SquareScales &scales,
                                 const CopyCall &row, CodeTile &pairs) {
  uint8_t *first = row.codes + tile.row * row.codes_stride + tile.column / 2;
  const bool streamed =
      row.streamed && is_aligned(first) && row.codes_stride % 32 == 0;
  for (int64_t i = 0; i < kTileSide; i += 2) {
    const float *factors = scales.factors[i / kBlock];
    const T *x = tile.at(i);
    uint8_t *out = first + i * row.codes_stride;
    for (int64_t j = 0; j < kTileSide; j += 32) {
      Floats8 values[4];
      const Floats8 low = broadcast(factors[j / kBlock]),
                    high = broadcast(factors[j / kBlock + 1]);
      multiply_32(x + j, low, high, values);
      const Bytes32 even = encode_32<E2M1, range>(values);
      multiply_32(x + tile.stride + j, low, high, values);
      const Bytes32 odd = encode_32<E2M1, range>(values);
      const Bytes32 rows = pack_nibbles(even, odd);
      put(out + j / 2, low_half(rows), streamed);
      put(out + row.codes_stride + j / 2, high_half(rows), streamed);
      store(pairs.values[i / 2] + j,
            even | as<Bytes32>(as<Halves16>(odd) << 4));
    }
    bring_next(tile);
    bring_next(tile);
  }
}

template <Range range, class T>
static void encode_part_squares(const TileOf<T> &tile,
                                const SquareScales &scales, CodeTile &codes) {
  alignas(64) float spread[kTileSide];
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; i % kBlock == 0 && j < kTileSide; ++j)
      spread[j] = scales.factors[i / kBlock][j / kBlock];
    encode_row_by<E2M1, range>(tile.at(i), tile.columns, spread,
                               codes.values[i]);
    bring_next(tile);
  }
}

// Nearest rounding.
template <class T>
static void encode_plain_squares(const TileOf<T> &tile, const CopyCall *row,
                                 const CopyCall *col) {
  SquareScales scales;
  CodeTile codes;
  const int32_t amax = amax_for_range(
      row ? *row : *col, scale_plain_squares(tile, row, col, scales));
  const bool is_whole = tile.rows == kTileSide && tile.columns == kTileSide;
  if (kHasVectors && row && col && is_whole) {
    with_range(amax, false, [&](auto range) {
      encode_whole_squares<range>(tile, scales, *row, codes);
    });
    return store_pairs(tile, tile.rows, codes, *col);
  }
  with_range(amax, false, [&](auto range) {
    encode_part_squares<range>(tile, scales, codes);
  });
  store_squares(tile, codes, row, col);
}

// Tiles whose rounding looks at more than the value and the scale, 16 rows at a
// time.
static void encode_other_squares(const Tile &tile, const CopyCall *row,
                                 const CopyCall *col, SquareScratch &scratch) {
  const CopyCall &copy = row ? *row : *col;
  const TwoLevel level = level_of(copy, 0);
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    const Tile part = group_of(tile, first, copy, scratch.group);
    amax_of_columns(part, 0, part.rows, scratch.amax);
    fold_columns<kBlock>(scratch.amax, part.columns);
    uint8_t *bytes = scratch.bytes;
    if (copy.four_over_six != FourOverSix::none)
      choose_squares(part, copy, level, scratch.amax, bytes,
                     scratch.codes.values + first);
    else
      encode_squares(part, copy, level, scratch, bytes,
                     scratch.codes.values + first);
    store_square_scales(part, bytes, row, col);
  }
}

template <class T>
static void quantize_squares(const TileOf<T> &tile, const CopyCall *row,
                             const CopyCall *col) {
  if (is_plain(row ? *row : *col))
    return encode_plain_squares(tile, row, col);
  if constexpr (std::is_same_v<T, float>) {
    SquareScratch scratch;
    encode_other_squares(tile, row, col, scratch);
    store_squares(tile, scratch.codes, row, col);
  }
}

} // namespace steelyard::STEELYARD_ISA
