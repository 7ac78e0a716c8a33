#include "cpu/tape/norm_backward_kernel.h"

#include "cpu/operations.h"
#include "cpu/rows/norm_backward.h"

namespace steelyard {
namespace {

// Memory for a result of so many elements, and its dtype; null where there is
// none.
void *made(const Values &values, int position, int64_t elements, Dtype &dtype) {
  if (position == kNowhere)
    return nullptr;
  const Tensor x = values.tensor(position);
  require(x.elements() == elements, "a gradient must be as large as what it is "
                                    "the gradient of");
  dtype = x.type.dtype();
  return contiguous_memory(x);
}

// What is known of each row of a matrix.
Matrix column(const Values &values, int position, int64_t rows) {
  const Matrix x = values.matrix(position);
  require(x.rows == rows && x.columns == 1,
          "each row must have its mean and its rstd");
  return x;
}

} // namespace

void NormBackwardKernel::run(const Values &values, int threads) const {
  NormBackwardCall call{};
  call.grad = values.matrix(grad);
  call.x = values.matrix(source);
  const auto [rows, columns] = std::pair(call.x.rows, call.x.columns);
  require(call.grad.rows == rows && call.grad.columns == columns,
          "a norm and its source must have one size");
  call.mean = column(values, mean, rows);
  call.rstd = column(values, rstd, rows);
  if (weight != kNowhere)
    call.weight = values.row(weight, 1, columns);
  call.grad_x = made(values, grad_source, rows * columns, call.dtype);
  call.grad_weight = made(values, grad_weight, columns, call.weight_dtype);
  call.grad_bias = made(values, grad_bias, columns, call.bias_dtype);
  values.done();
  if (columns != 0)
    run_norm_backward(call, threads);
}

} // namespace steelyard
