#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"
#include "cpu/dispatch/kernel_table.h"
#include "cpu/quantize/amax.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace nb = nanobind;

namespace steelyard {

void bind_produce(nb::module_ &m) {
  m.def(
      "produce",
      [](const MatrixArguments &out, const ProducerArguments &arguments,
         uintptr_t amax, int threads) {
        nb::gil_scoped_release release;
        const Matrix target = matrix_of(out);
        const Producer producer = producer_of(arguments, target.dtype);
        ProduceCall call{target,
                         {},
                         &producer,
                         const_cast<void *>(target.data),
                         pointer<uint32_t>(amax)};
        call.tiling = make_tiling(producer.inputs[0], TileShape::flat);
        const KernelTable &table = kernels();
        const int64_t grain = tile_grain(call.tiling, producer.is_norm());
        parallel_for(call.tiling.count, grain, threads,
                     [&](int64_t begin, int64_t end) {
                       table.produce(call, begin, end);
                     });
        if (call.amax)
          canonicalize_nan(call.amax, 1);
      },
      "Write what a producer makes of its inputs into a contiguous matrix, and "
      "raise a float32 of 0 to its amax.");
}

} // namespace steelyard
