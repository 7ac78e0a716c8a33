// What a GEMM multiplies: factors * (a b^T), b quantized, a quantized or not,
// and what becomes of the product.
#pragma once

#include "cpu/formats/scheme.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/gemm/result.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

enum class ScaleType : int { none, f32, e8m0, e4m3 };

// One operand, (outer, k) with k reduced; codes need no alignment.
struct GemmOperand {
  Matrix values; // in place of codes and scales, where that is the element
  const uint8_t *codes;
  int64_t codes_stride; // bytes from one stored row to the next
  Element element;
  bool k_major; // stored (k, outer), as columnwise MX; otherwise (outer, k)
  bool is_packed_weight; // codes and scales lie as in packed_weight.h
  int64_t outer, k;

  const void *scales; // of element (i, p): [i >> outer_shift][p >> k_shift]
  ScaleType scale_type;
  int outer_shift, k_shift;       // the sides of a block are powers of two
  int64_t outer_stride, k_stride; // in scales
  int64_t scale_count;            // e8m0: bytes of `scales`
  const PackedRanges *ranges;     // e8m0 of a packed weight

  // Panels hold code * scale * unit * fold; the rest of the value is left to
  // the factors at the end.
  double unit;           // a power of two
  const float *fold;     // (outer,): levels above `scales` that are not finite
  const double *factors; // (outer,); null where all are 1
  double factor;         // of all of them
};

struct GemmProblem {
  GemmOperand a, b;
  const GemmResult &result; // (a.outer, b.outer)
};

} // namespace steelyard
