#include "cpu/operations.h"

#include <algorithm>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/operand.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

struct Kernels {
  void (*fill)(const GemmCall &call, int64_t begin, int64_t end);
  void (*multiply)(const GemmCall &call, int64_t begin, int64_t end);
};

Kernels kernels_of(const GemmCall &call, const KernelTable &table) {
  if (call.plan.few_rows && call.problem.b.element == Element::e2m1)
    return {table.fill_few_fp4, table.multiply_few_fp4};
  if (call.plan.panels == Panels::integers)
    return {table.fill_integer_rows, table.multiply_integers};
  if (call.plan.panels == Panels::bfloats)
    return {table.fill_bfloat_rows, table.multiply_bfloats};
  return {table.fill_row_panels, table.multiply_panels};
}

// All of k for the block where the call is.
void run_block(GemmCall &call, int threads, const KernelTable &table) {
  const Kernels kernels = kernels_of(call, table);
  const int64_t k = call.problem.a.k, slab = call.plan.slab_slices;
  const int64_t slices = std::max<int64_t>(ceil_div(k, kSlice), 1);
  for (int64_t slice = 0; slice < slices; slice += slab) {
    call.at.k = slice * kSlice;
    call.at.slices = std::min(slab, slices - slice);
    call.at.first_slab = slice == 0;
    call.at.last_slab = slice + call.at.slices == slices;
    parallel_for(
        row_units(call) * call.at.slices, 2, threads,
        [&](int64_t begin, int64_t end) { kernels.fill(call, begin, end); });
    parallel_for(tiles_down(call) * tiles_across(call), 1, threads,
                 [&](int64_t begin, int64_t end) {
                   kernels.multiply(call, begin, end);
                 });
  }
}

} // namespace

void run_gemm(const GemmArguments &arguments, int threads) {
  GemmProblem problem{{}, {}, arguments.result};
  OperandMemory a;
  if (const auto *copy = std::get_if<StoredCopy>(&arguments.a))
    a = describe_operand(*copy, problem.a);
  else
    describe_values(std::get<Matrix>(arguments.a), problem.a);
  const OperandMemory b = describe_operand(arguments.b, problem.b);
  const KernelTable &table = kernels();
  GemmPlan plan = plan_panels(problem, table);
  plan_tiles(problem, threads, plan);
  const int64_t M = problem.a.outer, N = problem.b.outer;
  GemmCall call{problem, plan, {}};
  for (int64_t row = 0; row < M; row += plan.block_rows)
    for (int64_t column = 0; column < N; column += plan.block_columns) {
      call.at.row = row;
      call.at.rows = std::min(plan.block_rows, M - row);
      call.at.column = column;
      call.at.columns = std::min(plan.block_columns, N - column);
      run_block(call, threads, table);
    }
}

} // namespace steelyard
