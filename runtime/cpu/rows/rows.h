// Functions of whole rows: sums, means and softmax. Sums and means have the
// order of torch's, see sums.h; those in a softmax that of norms, see
// produce/row_statistics.h.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

enum class RowFunction : int { sum, mean, softmax };

// In the order of the enum: callers know functions by name.
inline constexpr const char *kRowFunctionNames[] = {"sum", "mean", "softmax"};

struct RowsCall {
  RowFunction function;
  Matrix x;
  // Contiguous; of a softmax as wide as x, of others one value per row.
  void *out;
  Dtype dtype; // of what is written
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// The softmax. Tasks: rows.
void rows(const RowsCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
