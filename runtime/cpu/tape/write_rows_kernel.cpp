#include "cpu/tape/write_rows_kernel.h"

#include "cpu/tape/copy.h"
#include "cpu/tape/indices.h"

namespace steelyard {
namespace {

// The entry at an index of a dim, which has a size of one.
Tensor entry_of(Tensor x, int dim, int64_t index) {
  x.data += index * x.strides[dim] * x.type.bytes;
  x.sizes[dim] = 1;
  return x;
}

} // namespace

void WriteRowsKernel::run(const Values &values, int threads) const {
  const Tensor old = values.tensor(target), made = values.tensor(out),
               from = values.tensor(rows);
  require(dim >= 0 && dim < made.dims && from.dims == made.dims &&
              old.dims == made.dims,
          "entries must have the dims of what they are written to");
  require(from.type == made.type && old.type == made.type,
          "entries must have the dtype of what they are written to");
  const std::vector<int64_t> places =
      indices_of(values.tensor(indices), made.sizes[dim]);
  values.done();
  for (int i = 0; i < made.dims; ++i)
    require(old.sizes[i] == made.sizes[i] &&
                from.sizes[i] == (i == dim ? static_cast<int64_t>(places.size())
                                           : made.sizes[i]),
            "entries must have the sizes of what they are written to, and "
            "there must be one for each index");
  if (old.data != made.data)
    copy_tensor(old, made, threads);
  for (size_t i = 0; i < places.size(); ++i)
    copy_tensor(entry_of(from, dim, static_cast<int64_t>(i)),
                entry_of(made, dim, places[i]), threads);
}

} // namespace steelyard
