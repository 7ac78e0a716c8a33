#include "cpu/tape/grouped_kernels.h"

#include <vector>

#include "cpu/grouped/grouped.h"

namespace steelyard {
namespace {

// Rows of a matrix whose groups were checked when it was quantized.
constexpr int64_t kAnyRows = int64_t{1} << 31;

std::vector<int32_t> ends_of(const Tensor &x, int64_t groups) {
  require(x.type.bytes == sizeof(int32_t) && x.elements() == groups,
          "the ends of groups must be integers of 32 bits, one per group");
  std::vector<int32_t> ends(groups);
  if (groups > 0)
    copy_elements(x, reinterpret_cast<uint8_t *>(ends.data()));
  return ends;
}

GroupEnds checked(const std::vector<int32_t> &ends, int64_t rows) {
  const GroupEnds groups{ends.data(), static_cast<int64_t>(ends.size())};
  require(groups.fit(rows), "the ends of groups must not decrease, and must be "
                            "from 0 to the number of rows");
  return groups;
}

// The last two dims.
Matrix last_matrix(const Tensor &x) {
  require(x.dims >= 2, "a tensor in groups must have at least two dims");
  return {x.data,
          x.type.dtype(),
          x.sizes[x.dims - 2],
          x.sizes[x.dims - 1],
          x.strides[x.dims - 2],
          x.strides[x.dims - 1]};
}

} // namespace

void GroupedQuantizeKernel::run(const Values &values, int threads) const {
  const Tensor source = values.tensor(0);
  QuantizeArguments arguments{last_matrix(source)};
  arguments.row = destination_of(row, values, arguments.x, false);
  arguments.col = destination_of(col, values, arguments.x, true);
  if (scale != kNowhere)
    arguments.scale = memory<const float>(values.address(scale));
  set_random_state(arguments, rng, values);
  std::vector<int32_t> own;
  // If the matrices of a stack have no elements, any stride will do.
  const int64_t stride =
      source.dims == 3 ? (source.strides[0] ? source.strides[0] : 1) : 0;
  if (!stride)
    own = ends_of(values.tensor(ends), groups);
  const GroupEnds given =
      stride ? GroupEnds{nullptr, groups} : checked(own, arguments.x.rows);
  values.done();
  run_grouped_quantize(arguments, given, stride, threads);
}

void GroupedGemmKernel::run(const Values &values, int threads) const {
  const Tensor made = values.tensor(out);
  const Matrix target = last_matrix(made);
  const int64_t all = rows.value_or(both ? kAnyRows : target.rows);
  GroupedGemmArguments arguments{Matrix{}, operand_of(rhs, values, all), both,
                                 contiguous_matrix(target.data, target.dtype,
                                                   target.rows,
                                                   target.columns)};
  if (lhs)
    arguments.a = operand_of(*lhs, values, all);
  else
    arguments.a = values.matrix(0);
  const std::vector<int32_t> own = ends_of(values.tensor(ends), groups);
  const GroupEnds given =
      checked(own, lhs ? std::get<StoredCopy>(arguments.a).M
                       : std::get<Matrix>(arguments.a).rows);
  values.done();
  run_grouped_gemm(arguments, given, threads);
}

} // namespace steelyard
