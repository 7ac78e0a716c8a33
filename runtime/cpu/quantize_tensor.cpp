// FP8 with one scale for the tensor.
#include "encode.h"

namespace steelyard::STEELYARD_ISA {

void quantize_tensor(const Tile &tile, const CopyCall *row,
                     const CopyCall *col) {
  const CopyCall &copy = row ? *row : *col;
  if (copy.element == Element::e4m3)
    encode_tile<E4M3>(tile, copy.scale, row, col);
  else
    encode_tile<E5M2>(tile, copy.scale, row, col);
}

} // namespace steelyard::STEELYARD_ISA
