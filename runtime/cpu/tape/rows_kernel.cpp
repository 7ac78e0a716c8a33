#include "cpu/tape/rows_kernel.h"

namespace steelyard {

void RowsKernel::run(const Values &values, int threads) const {
  const Matrix x = values.matrix(source);
  const Tensor made = values.tensor(out);
  const int64_t width = function == RowFunction::softmax ? x.columns : 1;
  require(made.elements() == x.rows * width,
          "each row must have its place in the result");
  const RowsCall call{function, x, contiguous_memory(made), made.type.dtype()};
  values.done();
  run_rows(call, threads);
}

} // namespace steelyard
