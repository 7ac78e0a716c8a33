#include "cpu/tape/gemm_kernel.h"

namespace steelyard {

int64_t product_of(const Values &values, int begin, int end) {
  int64_t product = 1;
  for (int i = begin; i < end; ++i)
    product *= values.number(i);
  return product;
}

StoredCopy operand_of(const OperandSlots &slots, const Values &values,
                      int64_t sizes) {
  const auto &[bits, columnwise, codes, scales, amax, known, varies, columns] =
      slots;
  return copy_of({bits, columnwise, values.address_or_null(codes),
                  values.address_or_null(scales), values.address_or_null(amax),
                  varies ? known * sizes : known, columns});
}

void GemmKernel::run(const Values &values, int threads) const {
  const Matrix target = values.matrix(out);
  if (is_empty(target.rows, target.columns))
    return;
  const int64_t sizes = product_of(values, first_size, end_of_sizes);
  GemmArguments arguments{Matrix{}, operand_of(rhs, values, sizes),
                          GemmResult{target, {}, {}}};
  if (lhs)
    arguments.a = operand_of(*lhs, values, sizes);
  else
    arguments.a = values.matrix(0);
  GemmResult &result = arguments.result;
  if (bias != kNowhere)
    result.bias = values.row(bias, target.rows, target.columns);
  const bool has_epilogue = activation > 0 || preactivation != kNowhere;
  if (residual != kNowhere)
    (has_epilogue ? result.residual : result.accumulate) =
        values.matrix(residual);
  if (has_epilogue)
    result.epilogue = activation_of(activation);
  if (preactivation != kNowhere)
    result.preactivation = values.matrix(preactivation);
  values.done();
  run_gemm(arguments, threads);
}

} // namespace steelyard
