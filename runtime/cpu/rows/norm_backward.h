// The gradients of a layer norm: of its source, its weight and its bias.
//
// With h = (x - mean) * rstd and g = grad * weight, the gradient of a row of x
// is (g - mean(g) - h * mean(g * h)) * rstd. Means are summed as those of norms
// are, see produce/row_statistics.h. The gradients of weight and bias are sums
// over the rows, of grad * h and of grad: 32 rows are added up in float32, and
// such sums in float64, in an order that depends on sizes only.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

inline constexpr int64_t kNormRowsTogether = 32; // that float32 sums
inline constexpr int64_t kNormColumnsOfTask = 128;

struct NormBackwardCall {
  Matrix grad, x;
  Matrix mean, rstd; // one column, as many rows
  Matrix weight;     // (1, columns), or null data for none
  // Contiguous; null where nobody reads it.
  void *grad_x, *grad_weight, *grad_bias;
  Dtype dtype, weight_dtype, bias_dtype; // of these
  int64_t rows_of_task, tasks;
  // Room for 2 * columns of each task: for sums of a few rows, of grad * h and
  // then of grad, and for the sums of those.
  float *sums;
  double *totals;
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Writes grad_x and the sums of each task. Tasks: rows_of_task rows each.
void norm_backward(const NormBackwardCall &call, int64_t begin, int64_t end);
// Writes the gradients of weight and bias from the sums of all tasks. Tasks:
// kNormColumnsOfTask columns each.
void norm_vector_gradients(const NormBackwardCall &call, int64_t begin,
                           int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
