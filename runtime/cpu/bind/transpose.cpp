#include "cpu/bind/bindings.h"

#include "cpu/bind/arguments.h"
#include "cpu/decode/transpose.h"
#include "cpu/dispatch/kernel_table.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace nb = nanobind;

namespace steelyard {

void bind_transpose(nb::module_ &m) {
  m.def(
      "transpose",
      [](uintptr_t in, uintptr_t out, int64_t rows, int64_t columns,
         bool nibbles, int threads) {
        nb::gil_scoped_release release;
        const bool empty = is_empty(rows, columns);
        TransposeCall call{memory<const uint8_t>(in, empty),
                           memory<uint8_t>(out, empty),
                           rows,
                           columns,
                           nibbles,
                           {}};
        call.tiling = make_tiling({nullptr, Dtype::f32, rows, columns, 1, 1},
                                  TileShape::square);
        const KernelTable &table = kernels();
        parallel_for(call.tiling.count, tile_grain(call.tiling), threads,
                     [&](int64_t begin, int64_t end) {
                       table.transpose(call, begin, end);
                     });
      },
      "Transpose codes: bytes, or nibbles two per byte.");
}

} // namespace steelyard
