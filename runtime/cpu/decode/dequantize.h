// The values of a quantized copy, as a contiguous (M, N) matrix.
#pragma once

#include "cpu/formats/scheme.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

// Stored arrays as in quantize.h. One scale covers `scale_rows` x
// `scale_columns` stored elements.
struct DequantizeCall {
  Family family;
  Element element;
  bool transposed; // the stored array is the transpose of the output
  bool rht, row_scaled, is_static, is_divisor;
  const uint8_t *codes;
  int64_t codes_stride; // bytes per stored row
  const uint8_t *scales;
  int64_t scales_stride, scale_rows, scale_columns;
  const float *amax;
  float inverse_range; // nvfp4: 1 / (6 * largest block scale)
  void *out;
  Dtype dtype;
  int64_t rows, columns; // of the output
  Tiling tiling;         // of the output, 128x128 if transposed
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
void dequantize(const DequantizeCall &call, int64_t begin, int64_t end);
}
#endif

} // namespace steelyard
