// Largest magnitudes of a matrix, NaN on top.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

struct Producer;

// Results are float bits that start at zero; a null pointer skips its result.
struct AmaxCall {
  Matrix x;
  Tiling tiling;         // 128x128 for `column` and `transformed`
  uint32_t *tensor;      // of every element
  uint32_t *row;         // of each row: (rows,)
  uint32_t *column;      // of each column: (columns,)
  uint32_t *transformed; // of every element after the Hadamard transform
  const Producer *producer = nullptr; // where x comes from, if not from memory
};

// Fills a call's results, on at most `threads` threads.
void run_amax(AmaxCall &call, int threads);

// Amaxes are found as bits, where any NaN wins; what is kept is one NaN.
void canonicalize_nan(uint32_t *amax, int64_t size);

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
void amax(const AmaxCall &call, int64_t begin, int64_t end);
}
#endif

} // namespace steelyard
