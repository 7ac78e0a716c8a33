#include "cpu/operations.h"

#include "cpu/decode/dequantize.h"
#include "cpu/dispatch/kernel_table.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace steelyard {

static void set_scale_extent(SchemeBits scheme, bool columnwise,
                             DequantizeCall &call) {
  const int64_t block = scheme.block_side();
  const bool down = scheme.family() == Family::mx && columnwise;
  const bool square = scheme.family() == Family::block && scheme.tiled();
  call.scale_rows = down || square ? block : 1;
  call.scale_columns = down ? 1 : block;
}

void run_dequantize(const StoredCopy &copy, void *out, Dtype dtype,
                    int threads) {
  const SchemeBits scheme = copy.scheme;
  DequantizeCall call{};
  call.family = scheme.family();
  call.element = scheme.element();
  call.transposed = copy.columnwise && scheme.family() != Family::mx;
  call.rht = scheme.rht();
  call.row_scaled = scheme.row_scaled();
  call.is_static = scheme.is_static();
  call.is_divisor = scheme.is_divisor();
  call.codes = copy.codes;
  call.codes_stride = copy.code_row();
  call.scales = copy.scales;
  call.scales_stride = copy.scale_row();
  call.amax = copy.amax;
  call.inverse_range = static_cast<float>(1.0 / scheme.range());
  set_scale_extent(scheme, copy.columnwise, call);
  call.out = out;
  call.dtype = dtype;
  call.rows = copy.M;
  call.columns = copy.N;
  call.tiling =
      make_tiling({nullptr, Dtype::f32, call.rows, call.columns, 1, 1},
                  call.transposed ? TileShape::square : TileShape::flat);
  const KernelTable &table = kernels();
  parallel_for(
      call.tiling.count, tile_grain(call.tiling), threads,
      [&](int64_t begin, int64_t end) { table.dequantize(call, begin, end); });
}

} // namespace steelyard
