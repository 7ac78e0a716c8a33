// NVFP4: E4M3 scales per 1x16 block or 16x16 tile under a float32 scale per
// tensor or row, two codes per byte.
#include "cpu/quantize/nvfp4_squares.h"

namespace steelyard::STEELYARD_ISA {

struct alignas(64) RowScratch {
  int32_t amax[kTileColumns / kBlock];
  float factors[kTileColumns / kBlock], spread[kTileColumns];
  uint8_t codes[kTileColumns];
  uint8_t random[kTileColumns + kPhiloxSlack];
};

// `scale_blocks` with a second level for each.
static void scale_columns(const int32_t *__restrict amax,
                          const float *__restrict encode,
                          const float *__restrict decode, int64_t n,
                          uint8_t *__restrict bytes,
                          float *__restrict factors) {
  for (int64_t j = 0; j < n; ++j)
    bytes[j] =
        static_cast<uint8_t>(nvfp4_block_scale(float_of(amax[j]), encode[j]));
  for (int64_t j = 0; j < n; ++j)
    factors[j] = nvfp4_encode_factor(bytes[j], decode[j]);
}

static void choose_row(const Tile &tile, int64_t i, const CopyCall &copy,
                       const TwoLevel &level, uint8_t *bytes,
                       RowScratch &scratch) {
  BlockLanes lanes;
  LaneMap best;
  lanes.count = (tile.columns + kBlock - 1) / kBlock;
  for (int64_t b = 0; b < lanes.count; ++b) {
    load_lane(tile.at(i) + b * kBlock, 1, tile.columns - b * kBlock, b, lanes);
    lanes.amax[b] = float_of(scratch.amax[b]);
    set_level(lanes, b, level);
  }
  four_over_six(lanes, false, copy.four_over_six, best);
  std::memcpy(bytes, best.bytes, lanes.count);
  for (int64_t b = 0; b < lanes.count; ++b)
    for (int64_t k = 0; k < kBlock; ++k)
      scratch.codes[b * kBlock + k] = best.codes[k][b];
}

// Codes of a row with one factor per block, two per byte.
static void encode_row_blocks(const Tile &tile, int64_t i, const CopyCall &copy,
                              RowScratch &scratch, uint8_t *out) {
  if (!copy.stochastic) {
    const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
    const int32_t largest =
        amax_for_range(copy, largest_of(scratch.amax, blocks));
    return with_range(largest, false, [&](auto range) {
      encode_e2m1_blocks<range>(tile.at(i), tile.columns, scratch.factors, out);
    });
  }
  const uint8_t *random = random_bytes(copy, tile, i, scratch.random);
  for (int64_t j = 0; j < tile.columns; j += kBlock)
    for (int64_t k = 0; k < kBlock; ++k)
      scratch.spread[j + k] = scratch.factors[j / kBlock];
  encode_row_stochastic(tile.at(i), tile.columns, scratch.spread, random,
                        scratch.codes);
  pack_row(scratch.codes, tile.columns, out);
}

// Nearest rounding under one level for the tensor: every block of the tile at
// once.
template <class T>
static void quantize_plain_rows(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kTileElements / kBlock];
  alignas(64) float factors[kTileElements / kBlock];
  uint8_t bytes[kTileElements / kBlock];
  const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
  for (int64_t i = 0; i < tile.rows; ++i)
    amax_blocks<kBlock>(tile.at(i), tile.columns, amax + i * blocks);
  const int64_t count = tile.rows * blocks;
  scale_blocks(amax, count, level_of(copy, 0), bytes, factors);
  for (int64_t i = 0; i < tile.rows; ++i)
    std::memcpy(copy.scales + (tile.row + i) * copy.scales_stride +
                    tile.column / kBlock,
                bytes + i * blocks, blocks);
  const int32_t largest = amax_for_range(copy, largest_of(amax, count));
  with_range(largest, false, [&](auto range) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      uint8_t *out =
          copy.codes + (tile.row + i) * copy.codes_stride + tile.column / 2;
      for_pieces(tile, [&](int64_t j, int64_t n) {
        encode_e2m1_blocks<range>(tile.at(i) + j, n,
                                  factors + i * blocks + j / kBlock,
                                  out + j / 2, copy.streamed);
      });
    }
  });
}

static void quantize_other_rows(const Tile &tile, const CopyCall &copy) {
  RowScratch scratch;
  const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
  TwoLevel level = level_of(copy, tile.row);
  for (int64_t i = 0; i < tile.rows; ++i) {
    if (copy.row_scaled)
      level = level_of(copy, tile.row + i);
    amax_blocks<kBlock>(tile.at(i), tile.columns, scratch.amax);
    uint8_t *bytes = copy.scales + (tile.row + i) * copy.scales_stride +
                     tile.column / kBlock;
    uint8_t *codes =
        copy.codes + (tile.row + i) * copy.codes_stride + tile.column / 2;
    if (copy.four_over_six != FourOverSix::none) {
      choose_row(tile, i, copy, level, bytes, scratch);
      pack_row(scratch.codes, tile.columns, codes);
      continue;
    }
    scale_blocks(scratch.amax, blocks, level, bytes, scratch.factors);
    encode_row_blocks(tile, i, copy, scratch, codes);
  }
}

struct alignas(64) ColumnScratch {
  float level_amax[kTileSide], encode[kTileSide], decode[kTileSide];
  int32_t amax[kTileSide];
  float factors[kTileSide];
  uint8_t bytes[kTileSide / kBlock][kTileSide];
  uint8_t random[kTileSide + kPhiloxSlack];
  HadamardGroup group;
  CodeTile codes;
};

static void choose_columns(const Tile &part, const CopyCall &copy,
                           ColumnScratch &scratch, uint8_t *bytes,
                           uint8_t (*codes)[kTileSide]) {
  BlockLanes lanes;
  LaneMap best;
  lanes.count = part.columns;
  for (int64_t j = 0; j < part.columns; ++j) {
    load_lane(part.data + j, part.stride, part.rows, j, lanes);
    lanes.amax[j] = float_of(scratch.amax[j]);
    set_level(lanes, j,
              {scratch.level_amax[j], scratch.encode[j], scratch.decode[j]});
  }
  four_over_six(lanes, false, copy.four_over_six, best);
  std::memcpy(bytes, best.bytes, part.columns);
  std::memcpy(codes, best.codes, part.rows * kTileSide);
}

template <class T>
static void encode_columns(const TileOf<T> &part, const CopyCall &copy,
                           ColumnScratch &scratch, uint8_t *bytes,
                           uint8_t (*codes)[kTileSide]) {
  scale_columns(scratch.amax, scratch.encode, scratch.decode, part.columns,
                bytes, scratch.factors);
  if constexpr (std::is_same_v<T, float>)
    if (copy.stochastic) {
      for (int64_t i = 0; i < part.rows; ++i)
        encode_row_stochastic(part.at(i), part.columns, scratch.factors,
                              random_bytes(copy, part, i, scratch.random),
                              codes[i]);
      return;
    }
  for (int64_t i = 0; i < part.rows; ++i)
    encode_row_by<E2M1>(part.at(i), part.columns, scratch.factors, codes[i]);
}

static void load_levels(const TilePlace &tile, const CopyCall &copy,
                        ColumnScratch &scratch) {
  TwoLevel level = level_of(copy, tile.column);
  for (int64_t j = 0; j < tile.columns; ++j) {
    if (copy.row_scaled)
      level = level_of(copy, tile.column + j);
    scratch.level_amax[j] = level.amax;
    scratch.encode[j] = level.encode;
    scratch.decode[j] = level.decode;
  }
}

template <class T>
static void quantize_columns(const TileOf<T> &tile, const CopyCall &copy) {
  ColumnScratch scratch;
  int64_t rows = 0;
  load_levels(tile, copy, scratch);
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    const auto part = group_of(tile, first, copy, scratch.group);
    uint8_t *bytes = scratch.bytes[first / kBlock];
    uint8_t (*codes)[kTileSide] = scratch.codes.values + first;
    amax_of_columns(part, 0, part.rows, scratch.amax);
    rows = first + part.rows;
    if constexpr (std::is_same_v<T, float>)
      if (copy.four_over_six != FourOverSix::none) {
        choose_columns(part, copy, scratch, bytes, codes);
        continue;
      }
    encode_columns(part, copy, scratch, bytes, codes);
  }
  store_columns(tile, rows, scratch.codes, copy);
  transpose_bytes(
      scratch.bytes[0], kTileSide, (rows + kBlock - 1) / kBlock, tile.columns,
      copy.scales + tile.column * copy.scales_stride + tile.row / kBlock,
      copy.scales_stride);
}

template <class T>
void quantize_nvfp4(const TileOf<T> &tile, const CopyCall *row,
                    const CopyCall *col) {
  if ((row ? row : col)->tiled)
    return quantize_squares(tile, row, col);
  if (row && is_plain(*row))
    quantize_plain_rows(tile, *row);
  else if constexpr (std::is_same_v<T, float>)
    if (row)
      quantize_other_rows(tile, *row);
  if (col)
    quantize_columns(tile, *col);
}

template void quantize_nvfp4(const Tile &, const CopyCall *, const CopyCall *);
template void quantize_nvfp4(const NarrowTile &, const CopyCall *,
                             const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
