// MXFP8: E8M0 scales per 1x32 block, 32x1 block or 32x32 tile. Both copies keep
// the layout of x.
#include "cpu/quantize/encode.h"
#include "cpu/quantize/mx_scales.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kBlock = 32;

// Rounded up, the scale brings the amax of a block to the format's largest or
// below.
static bool is_bounded(const CopyCall &copy) {
  return copy.rule == Rule::rceil;
}

template <class Format, class T>
static void quantize_rows(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kTileElements / kBlock];
  alignas(64) float factors[kTileElements / kBlock];
  uint8_t bytes[kTileElements / kBlock];
  const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
  for (int64_t i = 0; i < tile.rows; ++i)
    amax_blocks<kBlock>(tile.at(i), tile.columns, amax + i * blocks);
  const int64_t count = tile.rows * blocks;
  scale_blocks<Format>(amax, count, copy.rule, bytes, factors);
  for (int64_t i = 0; i < tile.rows; ++i)
    std::memcpy(copy.scales + (tile.row + i) * copy.scales_stride +
                    tile.column / kBlock,
                bytes + i * blocks, blocks);
  with_range(largest_of(amax, count), is_bounded(copy), [&](auto range) {
    for (int64_t i = 0; i < tile.rows; ++i)
      for_pieces(tile, [&](int64_t j, int64_t n) {
        encode_blocks<Format, kBlock, range>(
            tile.at(i) + j, n, factors + i * blocks + j / kBlock,
            codes_at(copy, tile, i) + j, copy.streamed);
      });
  });
}

// Shifts of a block of columns for values of 16 bits; false where these do not
// suffice.
template <class Format>
static bool narrow_shifts(const float *factors, int64_t n, uint16_t *shifts) {
  bool suffice = true;
  for (int64_t j = 0; j < n; ++j) {
    const int shift = narrow_shift<Format>(factors[j]);
    suffice &= shift >= 0;
    shifts[j] = static_cast<uint16_t>(shift);
  }
  return suffice;
}

template <class Format, Range range>
static void encode_columns(const Tile &tile, int64_t first, int64_t rows,
                           const float *factors, const CopyCall &copy) {
  for (int64_t i = first; i < first + rows; ++i)
    for_pieces(tile, [&](int64_t j, int64_t n) {
      encode_row_by<Format, range>(tile.at(i) + j, n, factors + j,
                                   codes_at(copy, tile, i) + j, copy.streamed);
    });
}

template <class Format, Range range>
static void encode_columns(const NarrowTile &tile, int64_t first, int64_t rows,
                           const float *factors, const CopyCall &copy) {
  alignas(64) uint16_t shifts[kBandColumns];
  const bool suffice = range == Range::bounded &&
                       narrow_shifts<Format>(factors, tile.columns, shifts);
  for (int64_t i = first; i < first + rows; ++i)
    for_pieces(tile, [&](int64_t j, int64_t n) {
      encode_row_by_shifts<Format, range>(
          tile.at(i) + j, n, factors + j, suffice ? shifts + j : nullptr,
          codes_at(copy, tile, i) + j, copy.streamed);
    });
}

template <class Format, class T>
static void quantize_columns(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kBandColumns];
  alignas(64) float factors[kBandColumns];
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    const int64_t rows = smaller(kBlock, tile.rows - first);
    amax_of_columns(tile, first, rows, amax);
    uint8_t *bytes = copy.scales +
                     (tile.row + first) / kBlock * copy.scales_stride +
                     tile.column;
    scale_blocks<Format>(amax, tile.columns, copy.rule, bytes, factors);
    with_range(
        largest_of(amax, tile.columns), is_bounded(copy), [&](auto range) {
          encode_columns<Format, range>(tile, first, rows, factors, copy);
        });
  }
}

// The bytes of a row of 32x32 tiles, repeated over rows or columns.
static void store_tile_scales(const TilePlace &tile, int64_t first,
                              int64_t rows, const uint8_t *bytes,
                              const CopyCall *row, const CopyCall *col) {
  const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
  for (int64_t i = first; row && i < first + rows; ++i)
    std::memcpy(row->scales + (tile.row + i) * row->scales_stride +
                    tile.column / kBlock,
                bytes, blocks);
  if (!col)
    return;
  uint8_t *out = col->scales +
                 (tile.row + first) / kBlock * col->scales_stride + tile.column;
  for (int64_t j = 0; j < tile.columns; ++j)
    out[j] = bytes[j / kBlock];
}

template <class Format, class T>
static void quantize_square(const TileOf<T> &tile, const CopyCall *row,
                            const CopyCall *col) {
  alignas(64) int32_t amax[kBandColumns];
  alignas(64) float factors[kBandColumns];
  uint8_t bytes[kBandColumns / kBlock];
  const CopyCall &copy = row ? *row : *col;
  for (int64_t first = 0; first < tile.rows; first += kBlock) {
    const int64_t rows = smaller(kBlock, tile.rows - first);
    amax_of_columns(tile, first, rows, amax);
    fold_columns<kBlock>(amax, tile.columns);
    scale_blocks<Format>(amax, (tile.columns + kBlock - 1) / kBlock, copy.rule,
                         bytes, factors);
    store_tile_scales(tile, first, rows, bytes, row, col);
    for (int64_t i = first; i < first + rows; ++i) {
      encode_blocks<Format, kBlock, Range::any>(
          tile.at(i), tile.columns, factors, codes_at(copy, tile, i));
      if (row && col)
        std::memcpy(codes_at(*col, tile, i), codes_at(*row, tile, i),
                    tile.columns);
    }
  }
}

template <class Format, class T>
static void quantize_as(const TileOf<T> &tile, const CopyCall *row,
                        const CopyCall *col) {
  if ((row ? row : col)->tiled)
    return quantize_square<Format>(tile, row, col);
  if (row)
    quantize_rows<Format>(tile, *row);
  if (col)
    quantize_columns<Format>(tile, *col);
}

template <class T>
void quantize_mx(const TileOf<T> &tile, const CopyCall *row,
                 const CopyCall *col) {
  if ((row ? row : col)->element == Element::e4m3)
    quantize_as<E4M3>(tile, row, col);
  else
    quantize_as<E5M2>(tile, row, col);
}

template void quantize_mx(const Tile &, const CopyCall *, const CopyCall *);
template void quantize_mx(const NarrowTile &, const CopyCall *,
                          const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
