#include "cpu/tape/dequantize_kernel.h"

namespace steelyard {

void DequantizeKernel::run(const Values &values, int threads) const {
  const StoredCopy read =
      operand_of(from, values, product_of(values, first_size, end_of_sizes));
  const Tensor made = values.tensor(out);
  require(made.elements() == read.M * read.N,
          "a decoded tensor must have the elements of its copy");
  values.done();
  run_dequantize(read, made.data, made.type.dtype(), threads);
}

} // namespace steelyard
