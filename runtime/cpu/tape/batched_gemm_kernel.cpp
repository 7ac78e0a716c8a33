#include "cpu/tape/batched_gemm_kernel.h"

#include <algorithm>

namespace steelyard {
namespace {

// The parts of a copy whose rows are those of all entries.
struct Entries {
  int bits;
  Tensor codes, scales;
  std::optional<Tensor> amax;

  Entries(const EntrySlots &slots, const Values &values)
      : bits(std::get<0>(slots)), codes(values.tensor(std::get<1>(slots))),
        scales(values.tensor(std::get<2>(slots))) {
    if (std::get<3>(slots) != kNowhere)
      amax = values.tensor(std::get<3>(slots));
    require(codes.dims == 2, "codes must have two dims");
  }

  // Rows of codes may have a zero after the last of an odd number.
  int64_t columns() const {
    const bool pairs = scheme_of(bits).element() == Element::e2m1;
    return codes.sizes[1] * (pairs ? 2 : 1);
  }

  StoredCopy entry(int64_t number, int64_t rows, int64_t columns) const {
    const int64_t first = number * rows;
    require(first + rows <= codes.sizes[0],
            "each entry of a batch must have its rows");
    return copy_of(
        {bits, false, address(codes, first),
         scales.dims == 2 ? address(scales, first) : address(scales, 0),
         // One amax is the tensor's; several are those of the rows.
         amax ? address(*amax, amax->dims ? first : 0) : 0, rows, columns});
  }

private:
  static uintptr_t address(const Tensor &x, int64_t row) {
    const int64_t stride = x.dims ? x.strides[0] : 0;
    return reinterpret_cast<uintptr_t>(x.data + row * stride * x.type.bytes);
  }
};

} // namespace

void BatchedGemmKernel::run(const Values &values, int threads) const {
  const Entries left(lhs, values), right(rhs, values);
  const Tensor made = values.tensor(out);
  require(batch_dims < made.dims, "a product must have more than batch dims");
  int64_t count = 1, tokens = 1;
  for (int i = 0; i + 1 < made.dims; ++i)
    (i < batch_dims ? count : tokens) *= made.sizes[i];
  const int64_t columns = made.sizes[made.dims - 1];
  const int64_t length =
      reduced.value_or(std::min(left.columns(), right.columns()));
  values.done();
  if (made.elements() == 0)
    return;
  const int64_t bytes = tokens * columns * made.type.bytes;
  for (int64_t i = 0; i < count; ++i) {
    const Matrix target = contiguous_matrix(made.data + i * bytes,
                                            made.type.dtype(), tokens, columns);
    run_gemm({left.entry(i, tokens, length), right.entry(i, columns, length),
              GemmResult{target, {}, {}}},
             threads);
  }
}

} // namespace steelyard
