#include "cpu/tape/lookup_kernel.h"

#include "cpu/tape/indices.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {

void LookupKernel::run(const Values &values, int threads) const {
  // Bytes that are not worth a thread of their own.
  constexpr int64_t kGrainBytes = 1 << 16;
  const Tensor from = values.tensor(table), to = values.tensor(out);
  require(from.dims == 2 && to.dims > 0 &&
              to.sizes[to.dims - 1] == from.sizes[1],
          "a table must have rows as long as those of the result");
  require(to.type == from.type, "a result must have the dtype of its table");
  uint8_t *made = contiguous_memory(to);
  const std::vector<int64_t> rows =
      indices_of(values.tensor(indices), from.sizes[0]);
  values.done();
  const int64_t count = static_cast<int64_t>(rows.size());
  require(count == to.rows(), "each index must have a row of the result");
  const Tensor row{nullptr, from.type, 1, {from.sizes[1]}, {from.strides[1]}};
  const int64_t bytes = from.sizes[1] * from.type.bytes;
  parallel_for(count, kGrainBytes / (bytes + 1) + 1, threads,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   Tensor own = row;
                   own.data =
                       from.data + rows[i] * from.strides[0] * from.type.bytes;
                   copy_elements(own, made + i * bytes);
                 }
               });
}

} // namespace steelyard
