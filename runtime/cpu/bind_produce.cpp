#include "kernel_table.h"
#include "producer_arguments.h"
#include "thread_pool.h"
#include "tiling.h"

namespace nb = nanobind;

namespace steelyard {

void bind_produce(nb::module_ &m) {
  m.def(
      "produce",
      [](const MatrixArguments &out, const ProducerArguments &arguments,
         int threads) {
        nb::gil_scoped_release release;
        const Matrix target = matrix(out);
        const Producer producer = producer_of(arguments, target.dtype);
        ProduceCall call{
            target, {}, &producer, const_cast<void *>(target.data)};
        call.tiling = make_tiling(producer.inputs[0], TileShape::flat);
        const KernelTable &table = kernels();
        parallel_for(call.tiling.count,
                     tile_grain(call.tiling, producer.is_norm()), threads,
                     [&](int64_t begin, int64_t end) {
                       table.produce(call, begin, end);
                     });
      },
      "Write what a producer makes of its inputs into a contiguous matrix.");
}

} // namespace steelyard
