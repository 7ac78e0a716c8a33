#include "bindings.h"

#include "copy_arguments.h"
#include "dequantize.h"
#include "kernel_table.h"
#include "thread_pool.h"
#include "tiling.h"

namespace nb = nanobind;

namespace steelyard {

static void set_scale_extent(SchemeBits scheme, bool columnwise,
                             DequantizeCall &call) {
  constexpr int64_t blocks[] = {1, 128, 32, 16};
  const int64_t block = blocks[static_cast<int>(scheme.family())];
  const bool down = scheme.family() == Family::mx && columnwise;
  const bool square = scheme.family() == Family::block && scheme.tiled();
  call.scale_rows = down || square ? block : 1;
  call.scale_columns = down ? 1 : block;
}

static void dequantize(SchemeBits scheme, bool columnwise, DequantizeCall &call,
                       int threads) {
  const StoredShape stored =
      stored_shape(scheme, columnwise, call.rows, call.columns);
  call.family = scheme.family();
  call.element = scheme.element();
  call.transposed = columnwise && scheme.family() != Family::mx;
  call.rht = scheme.rht();
  call.row_scaled = scheme.row_scaled();
  call.codes_stride = codes_stride(scheme, stored);
  call.scales_stride = scales_stride(scheme, columnwise, stored);
  call.inverse_range = static_cast<float>(
      1.0 /
      (6.0 * (scheme.four_over_six() == FourOverSix::none ? 448.0 : 256.0)));
  set_scale_extent(scheme, columnwise, call);
  call.tiling =
      make_tiling({nullptr, Dtype::f32, call.rows, call.columns, 1, 1},
                  call.transposed ? TileShape::square : TileShape::flat);
  const KernelTable &table = kernels();
  parallel_for(
      call.tiling.count, tile_grain(call.tiling), threads,
      [&](int64_t begin, int64_t end) { table.dequantize(call, begin, end); });
}

void bind_dequantize(nb::module_ &m) {
  m.def(
      "dequantize",
      [](int scheme, bool columnwise, uintptr_t codes, uintptr_t scales,
         uintptr_t amax, int64_t rows, int64_t columns, uintptr_t out,
         int dtype, int threads) {
        nb::gil_scoped_release release;
        DequantizeCall call{};
        call.codes = reinterpret_cast<const uint8_t *>(codes);
        call.scales = reinterpret_cast<const uint8_t *>(scales);
        call.amax = reinterpret_cast<const float *>(amax);
        call.out = reinterpret_cast<void *>(out);
        call.dtype = static_cast<Dtype>(dtype);
        call.rows = rows;
        call.columns = columns;
        dequantize({scheme}, columnwise, call, threads);
      },
      "The values of a quantized copy as a contiguous matrix.");
}

} // namespace steelyard
