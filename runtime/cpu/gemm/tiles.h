// Where the parts of a product lie in its workspaces. Included by kernel
// sources only.
#pragma once

#include "cpu/gemm/gemm.h"
#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

// Rows whose packed values stay in a core's own cache beside the columns.
static constexpr int64_t kCachedRows = 3 * kRowUnit;

// A tile of the block: where it is in the block, and its accumulators.
template <class T> struct OutputTile {
  int64_t row, rows, column, columns;
  T *sums; // rows are tile_columns apart
};

template <class T>
static OutputTile<T> tile_of(const GemmCall &call, int64_t task) {
  const int64_t row = task % tiles_down(call) * call.plan.tile_rows;
  const int64_t column = task / tiles_down(call) * call.plan.tile_columns;
  return {row, smaller(call.plan.tile_rows, call.at.rows - row), column,
          smaller(call.plan.tile_columns, call.at.columns - column),
          static_cast<T *>(call.plan.accumulators) +
              task * call.plan.tile_rows * call.plan.tile_columns};
}

static inline int64_t slice_length(const GemmCall &call, int64_t slice) {
  return smaller(kSlice, call.problem.a.k - call.at.k - slice * kSlice);
}

} // namespace steelyard::STEELYARD_ISA
