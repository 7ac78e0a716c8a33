#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/rows/rows.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

void run_rows(const RowsCall &call, int threads) {
  // Elements that are not worth a thread of their own.
  constexpr int64_t kGrainElements = 1 << 13;
  const KernelTable &table = kernels();
  parallel_for(
      call.x.rows, kGrainElements / (call.x.columns + 1) + 1, threads,
      [&](int64_t begin, int64_t end) { table.rows(call, begin, end); });
}

} // namespace steelyard
