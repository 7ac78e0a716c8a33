#include <nanobind/nanobind.h>

#include "amax.h"
#include "bindings.h"
#include "kernel_table.h"
#include "thread_pool.h"
#include "tiling.h"

namespace nb = nanobind;

namespace steelyard {

void run_amax(AmaxCall &call, int threads) {
  call.tiling = make_tiling(call.x, call.transformed != nullptr);
  const KernelTable &table = kernels();
  parallel_for(
      call.tiling.count, tile_grain(call.tiling), threads,
      [&](int64_t begin, int64_t end) { table.amax(call, begin, end); });
}

static void bind_one(const Matrix &x, uintptr_t out, bool rht, bool per_row,
                     int threads) {
  uint32_t *target = reinterpret_cast<uint32_t *>(out);
  AmaxCall call{x, {}, nullptr, nullptr, nullptr};
  (rht ? call.transformed : per_row ? call.row : call.tensor) = target;
  run_amax(call, threads);
}

void bind_amax(nb::module_ &m) {
  m.def(
      "amax",
      [](uintptr_t data, int dtype, int64_t rows, int64_t columns,
         int64_t row_stride, int64_t column_stride, uintptr_t out, bool rht,
         bool per_row, int threads) {
        const Matrix x{reinterpret_cast<const void *>(data),
                       static_cast<Dtype>(dtype),
                       rows,
                       columns,
                       row_stride,
                       column_stride};
        nb::gil_scoped_release release;
        bind_one(x, out, rht, per_row, threads);
      },
      "Largest magnitude of a matrix into zeroed float32: one, or one a row.");
}

} // namespace steelyard
