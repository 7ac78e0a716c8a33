// Sums of many numbers each, of the rows or of the columns of a matrix, in the
// order in which torch adds up contiguous tensors on a CPU, so a model has the
// same bits whichever of these we compute. The order depends on sizes only, not
// on strides: where a model is cut may change these.
//
// Numbers are added one after the other in float32, 16 at a time or more where
// there are many; then such sums, and sums of those, up to 4 levels. A row is 8
// lanes of 4 such sums each, which are added last.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

// A task is so many sums.
inline constexpr int64_t kSumsOfTask = 128;

struct SumsCall {
  // The numbers of one sum are the column of a matrix.
  Matrix x;
  bool of_rows; // the matrix is the transposed one of a tensor's
  bool is_mean;
  void *out; // contiguous, one for each column
  Dtype dtype;
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: kSumsOfTask sums each.
void sums(const SumsCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
