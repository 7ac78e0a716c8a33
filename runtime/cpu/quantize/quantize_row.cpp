// FP8 with one float32 scale per stored row.
#include "cpu/quantize/encode.h"

namespace steelyard::STEELYARD_ISA {

template <class Format, Range range, class T>
static void encode_rows(const TileOf<T> &tile, const CopyCall &copy) {
  for (int64_t i = 0; i < tile.rows; ++i)
    for_pieces(tile, [&](int64_t j, int64_t n) {
      encode_row<Format, range>(tile.at(i) + j, n,
                                copy.row_factors[tile.row + i],
                                codes_at(copy, tile, i) + j, copy.streamed);
    });
}

// The stored rows are the columns of the tile.
template <class Format, Range range, class T>
static void encode_columns(const TileOf<T> &tile, const CopyCall &copy) {
  CodeTile codes;
  for (int64_t i = 0; i < tile.rows; ++i) {
    encode_row_by<Format, range>(tile.at(i), tile.columns,
                                 copy.row_factors + tile.column,
                                 codes.values[i]);
    bring_next(tile);
  }
  transpose_bytes(codes.values[0], kTileSide, tile.rows, tile.columns,
                  copy.codes + tile.column * copy.codes_stride + tile.row,
                  copy.codes_stride, copy.streamed);
}

template <class Format, Range range, class T>
static void encode_in_range(const TileOf<T> &tile, const CopyCall *row,
                            const CopyCall *col) {
  if (row)
    encode_rows<Format, range>(tile, *row);
  if (col)
    encode_columns<Format, range>(tile, *col);
}

template <class Format, class T>
static void encode_as(const TileOf<T> &tile, const CopyCall *row,
                      const CopyCall *col) {
  if ((row ? row : col)->bounded)
    encode_in_range<Format, Range::bounded>(tile, row, col);
  else
    encode_in_range<Format, Range::any>(tile, row, col);
}

template <class T>
void quantize_row(const TileOf<T> &tile, const CopyCall *row,
                  const CopyCall *col) {
  if ((row ? row : col)->element == Element::e4m3)
    encode_as<E4M3>(tile, row, col);
  else
    encode_as<E5M2>(tile, row, col);
}

template void quantize_row(const Tile &, const CopyCall *, const CopyCall *);
template void quantize_row(const NarrowTile &, const CopyCall *,
                           const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
