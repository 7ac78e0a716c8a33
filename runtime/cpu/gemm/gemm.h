// The kernels of the scaled GEMM: both operands are decoded into panels of
// float32, float64, bfloat16 or integers, and these are multiplied.
//
// A block of the output has its accumulators in a workspace. For each slab of
// k, `fill_row_panels` decodes the rows of `a`; then each task of
// `multiply_panels` owns a tile of the block, decodes the columns of `b` that
// it needs slice by slice, and adds to its accumulators. With the last slab it
// also writes the output. Every element sums its k in the same order whatever
// the tiles, so bytes do not depend on the split.
#pragma once

#include "cpu/gemm/packed_weight.h"
#include "cpu/gemm/plan.h"
#include "cpu/gemm/problem.h"

namespace steelyard {

// Where a worker is: a block of the output, and a slab of k.
struct GemmCursor {
  int64_t row, rows, column, columns;
  int64_t k, slices; // first k, number of slices
  bool first_slab, last_slab;
};

struct GemmCall {
  const GemmProblem &problem;
  const GemmPlan &plan;
  GemmCursor at;
};

// Static, as each instruction set must have its own.
static inline int64_t row_units(const GemmCall &call) {
  return (call.at.rows + kRowUnit - 1) / kRowUnit;
}

static inline int64_t tiles_down(const GemmCall &call) {
  return (call.at.rows + call.plan.tile_rows - 1) / call.plan.tile_rows;
}

static inline int64_t tiles_across(const GemmCall &call) {
  return (call.at.columns + call.plan.tile_columns - 1) /
         call.plan.tile_columns;
}

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: row_units() * slices. Task t fills unit t / slices of slice t %
// slices.
void fill_row_panels(const GemmCall &call, int64_t begin, int64_t end);
// Tasks: tiles_down() * tiles_across(), numbered down first.
void multiply_panels(const GemmCall &call, int64_t begin, int64_t end);
// The same with panels of integers, where `has_vectors` says so.
void fill_integer_rows(const GemmCall &call, int64_t begin, int64_t end);
void multiply_integers(const GemmCall &call, int64_t begin, int64_t end);
// The same with panels of bfloat16, where the table has them.
void fill_bfloat_rows(const GemmCall &call, int64_t begin, int64_t end);
void multiply_bfloats(const GemmCall &call, int64_t begin, int64_t end);
// The same for few rows and FP4 columns. Tasks of the first: slices.
void fill_few_fp4(const GemmCall &call, int64_t begin, int64_t end);
void multiply_few_fp4(const GemmCall &call, int64_t begin, int64_t end);
// `skip_zeros` leaves out blocks whose codes are all zero.
ScaleRange gemm_scale_range(const GemmOperand &operand, bool skip_zeros);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
