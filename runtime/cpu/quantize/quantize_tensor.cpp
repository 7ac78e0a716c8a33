// FP8 with one scale for the tensor.
#include "cpu/quantize/encode.h"

namespace steelyard::STEELYARD_ISA {

template <class Format, class T>
static void encode_as(const TileOf<T> &tile, const CopyCall &copy,
                      const CopyCall *row, const CopyCall *col) {
  if (copy.bounded)
    encode_tile<Format, Range::bounded>(tile, copy.scale, row, col);
  else
    encode_tile<Format, Range::any>(tile, copy.scale, row, col);
}

template <class T>
void quantize_tensor(const TileOf<T> &tile, const CopyCall *row,
                     const CopyCall *col) {
  const CopyCall &copy = row ? *row : *col;
  if (copy.element == Element::e4m3)
    encode_as<E4M3>(tile, copy, row, col);
  else
    encode_as<E5M2>(tile, copy, row, col);
}

template void quantize_tensor(const Tile &, const CopyCall *, const CopyCall *);
template void quantize_tensor(const NarrowTile &, const CopyCall *,
                              const CopyCall *);

} // namespace steelyard::STEELYARD_ISA
