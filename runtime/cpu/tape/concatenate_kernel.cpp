#include "cpu/tape/concatenate_kernel.h"

#include <vector>

#include "cpu/tape/copy.h"

namespace steelyard {

void ConcatenateKernel::run(const Values &values, int threads) const {
  const Tensor result = values.tensor(count);
  require(dim >= 0 && dim < result.dims, "a dim must be one of its tensor");
  std::vector<Tensor> parts;
  for (int i = 0; i < count; ++i)
    parts.push_back(values.tensor(i));
  values.done();
  int64_t begin = 0;
  for (const Tensor &part : parts) {
    require(part.type == result.type, "parts must have the dtype of the whole");
    Tensor target = result;
    target.sizes = part.sizes;
    target.data += begin * result.strides[dim] * result.type.bytes;
    begin += part.sizes[dim];
    for (int i = 0; i < result.dims; ++i)
      require(part.dims == result.dims &&
                  (i == dim || part.sizes[i] == result.sizes[i]),
              "parts must have the sizes of the whole but along its dim");
    require(begin <= result.sizes[dim], "parts must fit into the whole");
    copy_tensor(part, target, threads);
  }
}

} // namespace steelyard
