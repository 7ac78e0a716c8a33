#include "cpu/tape/gemm_kernel.h"

namespace steelyard {
namespace {

StoredCopy operand_of(const OperandSlots &slots, const Values &values,
                      int64_t sizes) {
  const auto &[bits, columnwise, codes, scales, amax, known, varies, columns] =
      slots;
  return copy_of({bits, columnwise, values.address_or_null(codes),
                  values.address_or_null(scales), values.address_or_null(amax),
                  varies ? known * sizes : known, columns});
}

} // namespace

void GemmKernel::run(const Values &values, int threads) const {
  const Matrix target = values.matrix(out);
  if (is_empty(target.rows, target.columns))
    return;
  int64_t sizes = 1;
  for (int i = first_size; i < end_of_sizes; ++i)
    sizes *= values.number(i);
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
