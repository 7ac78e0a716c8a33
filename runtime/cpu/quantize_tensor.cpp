// FP8 with one scale for the tensor.
#include "encode.h"

namespace steelyard::STEELYARD_ISA {

template <class Format>
static void encode_as(const Tile &tile, const CopyCall &copy,
                      const CopyCall *row, const CopyCall *col) {
  if (copy.bounded)
    encode_tile<Format, Range::bounded>(tile, copy.scale, row, col);
  else
    encode_tile<Format, Range::any>(tile, copy.scale, row, col);
}

void quantize_tensor(const Tile &tile, const CopyCall *row,
                     const CopyCall *col) {
  const CopyCall &copy = row ? *row : *col;
  if (copy.element == Element::e4m3)
    encode_as<E4M3>(tile, copy, row, col);
  else
    encode_as<E5M2>(tile, copy, row, col);
}

} // namespace steelyard::STEELYARD_ISA
