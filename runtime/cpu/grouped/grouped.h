// Operations on tensors in groups: the rows of a matrix, which belong to groups
// one after the other, or the matrices of a stack. Each group is a matrix of
// its own. A part of a copy (codes, scales, amaxes, or packed weights) holds
// those of all groups one after the other; see formats/parts.py.
#pragma once

#include <cstdint>

#include "cpu/operations.h"

namespace steelyard {

// Where the groups of a matrix end: not decreasing, at most its rows.
struct GroupEnds {
  const int32_t *ends;
  int64_t count;

  // Whether this is so.
  bool fit(int64_t rows) const;
};

// What packed matrices of a stack begin at multiples of.
inline constexpr int64_t kPackedAlignment = 64;

// `arguments.x` is all rows, or with `group_stride` (in elements) the first
// matrix of a stack of `ends.count`, which has no ends. Copies have the memory
// of all groups. `arguments.scale` has one for each group, or if static one for
// all of them.
void run_grouped_quantize(const QuantizeArguments &arguments,
                          const GroupEnds &ends, int64_t group_stride,
                          int threads);

// `a` is in groups, as `b` is where `b_is_grouped`; otherwise it is a stack of
// one matrix per group. The copies have the sizes of all rows or of one matrix.
// `out` has a row for each row of `a`, or if both are in groups a matrix for
// each group; rows of no group, and matrices of groups without rows, are zero.
struct GroupedGemmArguments {
  std::variant<StoredCopy, Matrix> a; // a matrix has all rows
  StoredCopy b;
  bool b_is_grouped;
  Matrix out; // contiguous; rows of all groups, or of one matrix
};

void run_grouped_gemm(const GroupedGemmArguments &arguments,
                      const GroupEnds &ends, int threads);

} // namespace steelyard
