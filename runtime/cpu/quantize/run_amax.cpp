#include "cpu/quantize/amax.h"

#include <algorithm>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/produce/produce.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace steelyard {

void run_amax(AmaxCall &call, int threads) {
  call.tiling =
      make_tiling(call.x, call.column || call.transformed ? TileShape::square
                                                          : TileShape::flat);
  const KernelTable &table = kernels();
  parallel_for(
      call.tiling.count,
      tile_grain(call.tiling, call.producer && call.producer->is_norm()),
      threads,
      [&](int64_t begin, int64_t end) { table.amax(call, begin, end); });
}

void canonicalize_nan(uint32_t *amax, int64_t size) {
  for (int64_t i = 0; i < size; ++i)
    if (amax[i] > 0x7f800000)
      amax[i] = 0x7fc00000;
}

void find_amax(const Matrix &x, float *out, bool rht, bool per_row,
               int threads) {
  auto *bits = reinterpret_cast<uint32_t *>(out);
  const int64_t size = per_row ? x.rows : 1;
  AmaxCall call{x, {}, nullptr, nullptr, nullptr, nullptr};
  (rht ? call.transformed : per_row ? call.row : call.tensor) = bits;
  std::fill_n(bits, size, 0);
  run_amax(call, threads);
  canonicalize_nan(bits, size);
}

} // namespace steelyard
