// Rows added where their numbers say: the gradient of a table that is read row
// by row. Rows with one number are added in their order, and each sum is
// rounded to the dtype, as torch does, so a model has the same bits whichever
// of these we compute.
#pragma once

#include "cpu/tiles/matrix.h"

namespace steelyard {

inline constexpr int64_t kAddedColumnsOfTask = 128;

struct AddRowsCall {
  Matrix rows;
  const int64_t *numbers; // one for each row
  int64_t skipped;        // a number whose rows are left out
  void *out;              // contiguous rows, of the dtype of those added
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: kAddedColumnsOfTask columns each.
void add_rows(const AddRowsCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
