// The transpose of an array of codes: bytes, or nibbles two per byte along each
// row, the first in the low nibble.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

struct TransposeCall {
  const uint8_t *in;
  uint8_t *out;
  int64_t rows, columns; // codes of `in`
  bool nibbles;
  Tiling tiling; // of `in`, 128x128
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
void transpose(const TransposeCall &call, int64_t begin, int64_t end);
}
#endif

} // namespace steelyard
