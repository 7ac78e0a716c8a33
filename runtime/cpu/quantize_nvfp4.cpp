// NVFP4: E4M3 scales per 1x16 block or 16x16 tile under a float32 scale per
// tensor or row, two codes a byte.
#include "encode.h"
#include "four_over_six.h"
#include "hadamard.h"
#include "philox.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kBlock = 16;

struct alignas(64) RowScratch {
  int32_t amax[kTileColumns / kBlock];
  float factors[kTileColumns / kBlock], spread[kTileColumns];
  uint8_t codes[kTileColumns];
  uint8_t random[kTileColumns + kPhiloxSlack];
};

// Nearest rounding under one level for the tensor, and no transform.
static bool is_plain(const CopyCall &copy) {
  return !copy.stochastic && !copy.row_scaled && !copy.rht &&
         copy.four_over_six == FourOverSix::none;
}

static TwoLevel level_of(const CopyCall &copy, int64_t stored_row) {
  const float range = copy.four_over_six == FourOverSix::none
                          ? 6.0f * 448.0f
                          : kFourOverSixRange;
  return nvfp4_tensor_scale(copy.amax[copy.row_scaled ? stored_row : 0], range);
}

static void scale_blocks(const int32_t *__restrict amax, int64_t n,
                         const TwoLevel &level, uint8_t *__restrict bytes,
                         float *__restrict factors) {
  const float encode = level.encode, decode = level.decode;
  // Two loops: in one, the compiler threads branches and does not vectorize.
  for (int64_t b = 0; b < n; ++b)
    bytes[b] =
        static_cast<uint8_t>(nvfp4_block_scale(float_of(amax[b]), encode));
  for (int64_t b = 0; b < n; ++b)
    factors[b] = nvfp4_encode_factor(bytes[b], decode);
}

// The same with a second level for each.
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

// Rounds up with the probability of the distance: adds byte / 256 of a step,
// which is exact, and truncates. Above 6 every draw is 6.
static inline uint32_t encode_stochastic(float value, uint32_t random) {
  const uint32_t bits = bits_of(value);
  const int32_t magnitude = static_cast<int32_t>(bits & kAbsMask);
  const int32_t limit = static_cast<int32_t>(bits_of(E2M1::max)),
                one = static_cast<int32_t>(bits_of(1.0f));
  const int32_t clamped = magnitude < limit ? magnitude : limit;
  const int32_t exponent = clamped & static_cast<int32_t>(kInfinity);
  const int32_t binade = exponent > one ? exponent : one;
  const float step = float_of(binade - (1 << 23));
  const float dithered =
      static_cast<float>(static_cast<int32_t>(random)) * 0x1p-8f * step +
      float_of(clamped);
  // Exponent and first mantissa bit: 0.5 is 252, 1 is 254, and codes count on.
  const int32_t head = static_cast<int32_t>(bits_of(dithered)) >> 22;
  const int32_t tail = head > 251 ? 1 : 0;
  const int32_t counted = head - 252 > tail ? head - 252 : tail;
  const int32_t code = counted < 7 ? counted : 7;
  const bool is_nan = magnitude > static_cast<int32_t>(kInfinity);
  return is_nan ? E2M1::nan : code | (bits >> 28 & 8);
}

static const uint8_t *random_bytes(const CopyCall &copy, const Tile &tile,
                                   int64_t i, uint8_t *scratch) {
  const PhiloxKey key{copy.seed, copy.offset, copy.random_copy};
  const uint64_t first =
      (tile.row + i) * copy.random_row + tile.column * copy.random_column;
  return philox_bytes(key, first, copy.random_column, tile.columns, scratch);
}

// One factor a column.
static void encode_row_stochastic(const float *x, int64_t n,
                                  const float *factors, const uint8_t *random,
                                  uint8_t *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] =
        static_cast<uint8_t>(encode_stochastic(x[j] * factors[j], random[j]));
}

// A lane holds up to 16 values, `step` apart; the rest of it is zero.
static void load_lane(const float *x, int64_t step, int64_t n, int64_t lane,
                      BlockLanes &lanes) {
  for (int64_t k = 0; k < kBlock; ++k)
    lanes.values[k][lane] = k < n ? x[k * step] : 0.0f;
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

// Codes of a row with one factor a block, two a byte.
static void encode_row_blocks(const Tile &tile, int64_t i, const CopyCall &copy,
                              RowScratch &scratch, uint8_t *out) {
  if (!copy.stochastic) {
    const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
    return with_range(largest_of(scratch.amax, blocks), false, [&](auto range) {
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
  with_range(largest_of(amax, count), false, [&](auto range) {
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

// Codes of pairs of rows, which share a byte of the transposed rows of the
// copy.
static void store_pairs(const TilePlace &tile, int64_t rows,
                        const CodeTile &pairs, const CopyCall &copy) {
  transpose_bytes(pairs.values[0], kTileSide, (rows + 1) / 2, tile.columns,
                  copy.codes + tile.column * copy.codes_stride + tile.row / 2,
                  copy.codes_stride, copy.streamed);
}

static void store_columns(const TilePlace &tile, int64_t rows,
                          const CodeTile &codes, const CopyCall &copy) {
  CodeTile pairs;
  for (int64_t i = 0; i < rows; i += 2)
    for (int64_t j = 0; j < tile.columns; ++j)
      pairs.values[i / 2][j] = static_cast<uint8_t>(
          codes.values[i][j] | (i + 1 < rows ? codes.values[i + 1][j] : 0)
                                   << 4);
  store_pairs(tile, rows, pairs, copy);
}

// Codes of a tile into the rows of one copy, the columns of the other, or both.
static void store_squares(const TilePlace &tile, const CodeTile &codes,
                          const CopyCall *row, const CopyCall *col) {
  for (int64_t i = 0; row && i < tile.rows; ++i)
    pack_row(codes.values[i], tile.columns,
             row->codes + (tile.row + i) * row->codes_stride + tile.column / 2);
  if (col)
    store_columns(tile, tile.rows, codes, *col);
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

// The 16 rows from `first` as a tile of their own, transformed if the copy is.
template <class T>
static TileOf<T> group_of(const TileOf<T> &tile, int64_t first,
                          const CopyCall &copy, HadamardGroup &group) {
  TileOf<T> part = tile;
  part.row += first;
  part.data = tile.at(first);
  part.rows = smaller(kBlock, tile.rows - first);
  if constexpr (std::is_same_v<T, float>)
    if (copy.rht) {
      transform_rows(tile, first, group);
      part.data = group.values[0];
      part.stride = kTileSide;
      part.rows = kBlock;
    }
  return part;
}

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
                           const TwoLevel &level, ColumnScratch &scratch,
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

#if defined(__AVX2__)
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
      __m256 values[4];
      const __m256 low = _mm256_set1_ps(factors[j / kBlock]),
                   high = _mm256_set1_ps(factors[j / kBlock + 1]);
      multiply_32(x + j, low, high, values);
      const __m256i even = encode_32<E2M1, range>(values);
      multiply_32(x + tile.stride + j, low, high, values);
      const __m256i odd = encode_32<E2M1, range>(values);
      const __m256i rows = pack_nibbles(even, odd);
      put_16(out + j / 2, _mm256_castsi256_si128(rows), streamed);
      put_16(out + row.codes_stride + j / 2, _mm256_extracti128_si256(rows, 1),
             streamed);
      put_32(pairs.values[i / 2] + j,
             _mm256_or_si256(even, _mm256_slli_epi16(odd, 4)), false);
    }
    bring_next(tile);
    bring_next(tile);
  }
}
#endif

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
  const int32_t amax = scale_plain_squares(tile, row, col, scales);
#if defined(__AVX2__)
  if (row && col && tile.rows == kTileSide && tile.columns == kTileSide) {
    with_range(amax, false, [&](auto range) {
      encode_whole_squares<range>(tile, scales, *row, codes);
    });
    return store_pairs(tile, tile.rows, codes, *col);
  }
#endif
  with_range(amax, false, [&](auto range) {
    encode_part_squares<range>(tile, scales, codes);
  });
  store_squares(tile, codes, row, col);
}

// Tiles whose rounding looks at more than the value and the scale, 16 rows at a
// time.
static void encode_other_squares(const Tile &tile, const CopyCall *row,
                                 const CopyCall *col, ColumnScratch &scratch) {
  const CopyCall &copy = row ? *row : *col;
  const TwoLevel level = level_of(copy, 0);
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    const Tile part = group_of(tile, first, copy, scratch.group);
    amax_of_columns(part, 0, part.rows, scratch.amax);
    fold_columns<kBlock>(scratch.amax, part.columns);
    uint8_t *bytes = scratch.bytes[0];
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
    ColumnScratch scratch;
    encode_other_squares(tile, row, col, scratch);
    store_squares(tile, scratch.codes, row, col);
  }
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
