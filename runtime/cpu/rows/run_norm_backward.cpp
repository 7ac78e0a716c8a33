#include <algorithm>
#include <vector>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/rows/grain.h"
#include "cpu/rows/norm_backward.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

namespace {

// Each task has sums of its own.
constexpr int64_t kMostTasks = 64;

// So many tasks at most, of whole groups of rows.
int64_t rows_of_task(int64_t rows) {
  const int64_t groups = (rows + kNormRowsTogether - 1) / kNormRowsTogether;
  return std::max<int64_t>(1, (groups + kMostTasks - 1) / kMostTasks) *
         kNormRowsTogether;
}

} // namespace

void run_norm_backward(NormBackwardCall call, int threads) {
  const int64_t columns = call.x.columns;
  call.rows_of_task = rows_of_task(call.x.rows);
  call.tasks = (call.x.rows + call.rows_of_task - 1) / call.rows_of_task;
  std::vector<float> sums(2 * columns * call.tasks);
  std::vector<double> totals(2 * columns * call.tasks);
  call.sums = sums.data();
  call.totals = totals.data();
  const KernelTable &table = kernels();
  parallel_for(call.tasks,
               kGrainElements / (call.rows_of_task * (columns + 1)) + 1,
               threads, [&](int64_t begin, int64_t end) {
                 table.norm_backward(call, begin, end);
               });
  if (!call.grad_weight && !call.grad_bias)
    return;
  const int64_t elements = kNormColumnsOfTask * (2 * call.tasks + 1);
  parallel_for((columns + kNormColumnsOfTask - 1) / kNormColumnsOfTask,
               kGrainElements / elements + 1, threads,
               [&](int64_t begin, int64_t end) {
                 table.norm_vector_gradients(call, begin, end);
               });
}

} // namespace steelyard
