#include "cpu/tape/transpose_kernel.h"

namespace steelyard {

void TransposeKernel::run(const Values &values, int threads) const {
  const StoredCopy read =
      operand_of(from, values, product_of(values, first_size, end_of_sizes));
  const StoredCopy made = copy_of(
      {read.scheme.bits, !read.columnwise, values.address(codes),
       values.address(scales), values.address_or_null(amax), read.M, read.N});
  values.done();
  run_transpose(read, made, threads);
}

} // namespace steelyard
