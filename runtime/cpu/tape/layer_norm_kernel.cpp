#include "cpu/tape/layer_norm_kernel.h"

#include <cstring>

#include "cpu/operations.h"

namespace steelyard {
namespace {

// What is made of each row.
void *column_of(const Tensor &x, int64_t rows) {
  require(x.elements() == rows, "each row must have its mean and its rstd");
  return contiguous_memory(x);
}

} // namespace

void LayerNormKernel::run(const Values &values, int threads) const {
  Producer made = producer_of(producer, values);
  const Matrix target = result_matrix(made, out, values);
  const Tensor means = values.tensor(mean), scales = values.tensor(rstd);
  require(means.type.dtype() == scales.type.dtype(),
          "mean and rstd must have one dtype");
  made.means = column_of(means, target.rows);
  made.scales = column_of(scales, target.rows);
  made.statistics_dtype = means.type.dtype();
  values.done();
  if (target.columns == 0 && target.rows != 0) {
    // As torch: a mean of 0, and NaN in every dtype.
    std::memset(made.means, 0, target.rows * means.type.bytes);
    std::memset(made.scales, 0xff, target.rows * scales.type.bytes);
  }
  run_produce(target, made, nullptr, threads);
}

} // namespace steelyard
