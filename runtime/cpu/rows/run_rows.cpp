#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/rows/grain.h"
#include "cpu/rows/rows.h"
#include "cpu/rows/sums.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

void run_sums(const SumsCall &call, int threads) {
  const int64_t tasks = (call.x.columns + kSumsOfTask - 1) / kSumsOfTask;
  const int64_t elements = kSumsOfTask * (call.x.rows + 1);
  const KernelTable &table = kernels();
  parallel_for(
      tasks, kGrainElements / elements + 1, threads,
      [&](int64_t begin, int64_t end) { table.sums(call, begin, end); });
}

void run_rows(const RowsCall &call, int threads) {
  if (call.function != RowFunction::softmax) {
    const bool is_mean = call.function == RowFunction::mean;
    return run_sums({transposed(call.x), true, is_mean, call.out, call.dtype},
                    threads);
  }
  const KernelTable &table = kernels();
  parallel_for(
      call.x.rows, kGrainElements / (call.x.columns + 1) + 1, threads,
      [&](int64_t begin, int64_t end) { table.rows(call, begin, end); });
}

} // namespace steelyard
