#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/produce/produce.h"
#include "cpu/quantize/amax.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace steelyard {

void run_produce(const Matrix &out, const Producer &producer, float *amax,
                 int threads) {
  if (out.rows == 0 || out.columns == 0)
    return;
  ProduceCall call{out,
                   {},
                   &producer,
                   const_cast<void *>(out.data),
                   reinterpret_cast<uint32_t *>(amax)};
  call.tiling = make_tiling(producer.inputs[0], TileShape::flat);
  const KernelTable &table = kernels();
  const int64_t grain = tile_grain(call.tiling, producer.is_norm());
  parallel_for(
      call.tiling.count, grain, threads,
      [&](int64_t begin, int64_t end) { table.produce(call, begin, end); });
  if (call.amax)
    canonicalize_nan(call.amax, 1);
}

} // namespace steelyard
