#include <cstring>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/rows/add_rows.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

namespace {
// What is not worth a thread of its own.
constexpr int64_t kGrainElements = 1 << 13;
constexpr int64_t kGrainBytes = 1 << 18;
} // namespace

void run_add_rows(const AddRowsCall &call, int64_t count, int threads) {
  const int64_t size = call.rows.dtype == Dtype::f32 ? 4 : 2;
  const int64_t bytes = count * call.rows.columns * size;
  char *out = static_cast<char *>(call.out);
  parallel_for((bytes + kGrainBytes - 1) / kGrainBytes, 1, threads,
               [&](int64_t begin, int64_t end) {
                 const int64_t first = begin * kGrainBytes;
                 const int64_t last = end * kGrainBytes;
                 std::memset(out + first, 0,
                             (last < bytes ? last : bytes) - first);
               });
  const KernelTable &table = kernels();
  const int64_t elements = kAddedColumnsOfTask * (call.rows.rows + 1);
  parallel_for(
      (call.rows.columns + kAddedColumnsOfTask - 1) / kAddedColumnsOfTask,
      kGrainElements / elements + 1, threads,
      [&](int64_t begin, int64_t end) { table.add_rows(call, begin, end); });
}

} // namespace steelyard
