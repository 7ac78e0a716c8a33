// FP8 with float32 scales per 1x128 block or 128x128 tile.
#include "cpu/quantize/encode.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kBlock = 128;

template <class Format>
static float scale_of(const CopyCall &copy, int32_t amax) {
  return scale_from_amax(float_of(amax), Format::max, copy.epsilon,
                         copy.power_of_two, copy.limit);
}

template <class Format, class T>
static void quantize_rows(const TileOf<T> &tile, const CopyCall &copy) {
  int32_t amax[kTileColumns / kBlock];
  float scales[kTileColumns / kBlock];
  for (int64_t i = 0; i < tile.rows; ++i) {
    amax_blocks<kBlock>(tile.at(i), tile.columns, amax);
    for (int64_t b = 0; b * kBlock < tile.columns; ++b) {
      scales[b] = scale_of<Format>(copy, amax[b]);
      store_float(copy, tile.row + i, tile.column / kBlock + b,
                  1.0f / scales[b]);
    }
    const int64_t blocks = (tile.columns + kBlock - 1) / kBlock;
    with_range(largest_of(amax, blocks), true, [&](auto range) {
      for_pieces(tile, [&](int64_t j, int64_t n) {
        encode_blocks<Format, kBlock, range>(
            tile.at(i) + j, n, scales + j / kBlock, codes_at(copy, tile, i) + j,
            copy.streamed);
      });
    });
  }
}

template <class Format, class T>
static void quantize_columns(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kTileSide];
  alignas(64) float scales[kTileSide];
  CodeTile codes;
  amax_of_columns(tile, 0, tile.rows, amax);
  for (int64_t j = 0; j < tile.columns; ++j)
    scales[j] = scale_of<Format>(copy, amax[j]);
  for (int64_t j = 0; j < tile.columns; ++j)
    store_float(copy, tile.column + j, tile.row / kBlock, 1.0f / scales[j]);
  with_range(largest_of(amax, tile.columns), true, [&](auto range) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      encode_row_by<Format, range>(tile.at(i), tile.columns, scales,
                                   codes.values[i]);
      bring_next(tile);
    }
  });
  transpose_bytes(codes.values[0], kTileSide, tile.rows, tile.columns,
                  copy.codes + tile.column * copy.codes_stride + tile.row,
                  copy.codes_stride, copy.streamed);
}

template <class Format, class T>
static void quantize_square(const TileOf<T> &tile, const CopyCall *row,
                            const CopyCall *col) {
  const int32_t amax = static_cast<int32_t>(amax_of(tile));
  const float scale = scale_of<Format>(row ? *row : *col, amax);
  if (row)
    store_float(*row, tile.row / kBlock, tile.column / kBlock, 1.0f / scale);
  if (col)
    store_float(*col, tile.column / kBlock, tile.row / kBlock, 1.0f / scale);
  with_range(amax, true, [&](auto range) {
    encode_tile<Format, range>(tile, scale, row, col);
  });
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
void quantize_block(const TileOf<T> &tile, const CopyCall *row,
                    const CopyCall *col) {
  if ((row ? row : col)->element == Element::e4m3)
    quantize_as<E4M3>(tile, row, col);
  else
    quantize_as<E5M2>(tile, row, col);
}

template void quantize_block(const Tile &, const CopyCall *, const CopyCall *);
template void quantize_block(const NarrowTile &, const CopyCall *,
                             const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
