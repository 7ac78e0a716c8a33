// How Python describes a quantized copy to the kernels.
#pragma once

#include <cstdint>
#include <tuple>

#include "cpu/quantize/quantize.h"

namespace steelyard {

// Bits of a scheme, as `arguments.py` packs them.
struct SchemeBits {
  int bits;

  int field(int shift, int width) const {
    return bits >> shift & ((1 << width) - 1);
  }
  Family family() const { return static_cast<Family>(field(0, 2)); }
  Element element() const { return static_cast<Element>(field(2, 2)); }
  Rule rule() const { return static_cast<Rule>(field(4, 2)); }
  FourOverSix four_over_six() const {
    return static_cast<FourOverSix>(field(6, 2));
  }
  bool tiled() const { return field(8, 1); }
  bool power_of_two() const { return field(9, 1); }
  bool rht() const { return field(10, 1); }
  bool stochastic() const { return field(11, 1); }
  bool row_scaled() const { return field(12, 1); }
  // Of operands only: a packed weight, and the parts of the other usage, read
  // as this one.
  bool packed() const { return field(13, 1); }
  bool borrowed() const { return field(14, 1); }
};

inline int64_t ceil_div(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

// Stored rows and columns of a copy of an (M, N) matrix.
struct StoredShape {
  int64_t rows, columns;
};

inline StoredShape stored_shape(SchemeBits scheme, bool columnwise, int64_t M,
                                int64_t N) {
  const bool transposed = columnwise && scheme.family() != Family::mx;
  const int64_t rows = transposed ? N : M, columns = transposed ? M : N;
  return {rows, scheme.rht() ? ceil_div(columns, 16) * 16 : columns};
}

inline int64_t codes_stride(SchemeBits scheme, StoredShape stored) {
  return scheme.element() == Element::e2m1 ? ceil_div(stored.columns, 2)
                                           : stored.columns;
}

// Bytes a row of compact scales.
inline int64_t scales_stride(SchemeBits scheme, bool columnwise,
                             StoredShape stored) {
  switch (scheme.family()) {
  case Family::tensor:
    return 0;
  case Family::block:
    return ceil_div(stored.columns, 128) * sizeof(float);
  case Family::mx:
    return columnwise ? stored.columns : ceil_div(stored.columns, 32);
  case Family::nvfp4:
    return ceil_div(stored.columns, 16);
  }
  return 0;
}

} // namespace steelyard
