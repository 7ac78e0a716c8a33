#include <algorithm>
#include <cstring>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/rows/add_rows.h"
#include "cpu/rows/grain.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

namespace {
// Bytes that are not worth a thread of their own.
constexpr int64_t kGrainBytes = 1 << 18;
// Where memory is new, the instruction that clears longer pieces begins anew at
// each page that the system gives.
constexpr int64_t kClearedBytes = 2048;
} // namespace

void run_add_rows(const AddRowsCall &call, int64_t count, int threads) {
  const int64_t bytes = count * call.rows.columns * item_size(call.rows.dtype);
  char *out = static_cast<char *>(call.out);
  parallel_for(
      (bytes + kClearedBytes - 1) / kClearedBytes, kGrainBytes / kClearedBytes,
      threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = i * kClearedBytes;
          std::memset(out + at, 0, std::min(kClearedBytes, bytes - at));
        }
      });
  const KernelTable &table = kernels();
  const int64_t tasks =
      (call.rows.columns + kAddedColumnsOfTask - 1) / kAddedColumnsOfTask;
  const int64_t least =
      kGrainElements / (kAddedColumnsOfTask * (call.rows.rows + 1)) + 1;
  // Each thread walks all rows, once: in any cut each element gets its sums in
  // their order.
  const int64_t grain = std::max(least, (tasks + threads - 1) / threads);
  parallel_for(tasks, grain, threads, [&](int64_t begin, int64_t end) {
    table.add_rows(call, begin, end);
  });
}

} // namespace steelyard
