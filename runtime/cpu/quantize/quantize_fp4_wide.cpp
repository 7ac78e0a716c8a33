// E2M1 in 1x32 blocks, two codes per byte: MXFP4 with E8M0 scales, and NVFP4
// with E4M3 scales under a float32 scale per tensor.
#include "cpu/quantize/mx_scales.h"
#include "cpu/quantize/nvfp4.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kWide = 32;

static void scale_wide(const CopyCall &copy, const int32_t *amax, int64_t n,
                       uint8_t *bytes, float *factors) {
  if (copy.family == Family::mxfp4)
    scale_blocks<E2M1>(amax, n, copy.rule, bytes, factors);
  else
    scale_blocks(amax, n, level_of(copy, 0), bytes, factors);
}

template <class T>
static void quantize_rows(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kTileElements / kWide];
  alignas(64) float factors[kTileElements / kWide];
  uint8_t bytes[kTileElements / kWide];
  const int64_t blocks = (tile.columns + kWide - 1) / kWide;
  for (int64_t i = 0; i < tile.rows; ++i)
    amax_blocks<kWide>(tile.at(i), tile.columns, amax + i * blocks);
  const int64_t count = tile.rows * blocks;
  scale_wide(copy, amax, count, bytes, factors);
  for (int64_t i = 0; i < tile.rows; ++i)
    std::memcpy(copy.scales + (tile.row + i) * copy.scales_stride +
                    tile.column / kWide,
                bytes + i * blocks, blocks);
  const int32_t largest = amax_for_range(copy, largest_of(amax, count));
  with_range(largest, false, [&](auto range) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      uint8_t *out =
          copy.codes + (tile.row + i) * copy.codes_stride + tile.column / 2;
      for_pieces(tile, [&](int64_t j, int64_t n) {
        encode_e2m1_blocks<range, kWide>(tile.at(i) + j, n,
                                         factors + i * blocks + j / kWide,
                                         out + j / 2, copy.streamed);
      });
    }
  });
}

template <class T>
static void quantize_columns(const TileOf<T> &tile, const CopyCall &copy) {
  alignas(64) int32_t amax[kTileSide];
  alignas(64) float factors[kTileSide];
  uint8_t bytes[kTileSide / kWide][kTileSide];
  CodeTile codes;
  for (int64_t first = 0; first < tile.rows; first += kWide) {
    const int64_t rows = smaller(kWide, tile.rows - first);
    amax_of_columns(tile, first, rows, amax);
    scale_wide(copy, amax, tile.columns, bytes[first / kWide], factors);
    for (int64_t i = first; i < first + rows; ++i)
      encode_row_by<E2M1>(tile.at(i), tile.columns, factors, codes.values[i]);
  }
  store_columns(tile, tile.rows, codes, copy);
  for (int64_t j = 0; j < tile.columns; ++j)
    for (int64_t b = 0; b * kWide < tile.rows; ++b)
      copy.scales[(tile.column + j) * copy.scales_stride + tile.row / kWide +
                  b] = bytes[b][j];
}

template <class T>
void quantize_fp4_wide(const TileOf<T> &tile, const CopyCall *row,
                       const CopyCall *col) {
  if (row)
    quantize_rows(tile, *row);
  if (col)
    quantize_columns(tile, *col);
}

template void quantize_fp4_wide(const Tile &, const CopyCall *,
                                const CopyCall *);
template void quantize_fp4_wide(const NarrowTile &, const CopyCall *,
                                const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
