#include "cpu/tape/columns_kernel.h"

#include <vector>

#include "cpu/operations.h"
#include "cpu/rows/sums.h"
#include "cpu/tape/copy.h"

namespace steelyard {
namespace {

// Some dims of a tensor as one, from the last to the first.
struct Joined {
  int64_t size = 1, stride = 0;

  // Whether a dim before those lies in memory as one with them.
  bool add(int64_t next, int64_t next_stride) {
    if (next == 1)
      return true;
    const bool fits = size <= 1 || next_stride == stride * size;
    if (size == 1)
      stride = next_stride;
    size *= next;
    return fits;
  }
};

// The first dims as rows, the others as columns; none if they are not equally
// far apart.
std::optional<Matrix> as_columns(const Tensor &x, int dims) {
  Joined rows, columns;
  bool fits = true;
  for (int i = x.dims; i-- > 0;) {
    const bool joins =
        (i < dims ? rows : columns).add(x.sizes[i], x.strides[i]);
    fits = fits && joins;
  }
  if (!fits)
    return std::nullopt;
  return Matrix{x.data,       x.type.dtype(), rows.size,
                columns.size, rows.stride,    columns.stride};
}

} // namespace

void ColumnsKernel::run(const Values &values, int threads) const {
  Tensor x = values.tensor(source);
  const Tensor made = values.tensor(out);
  require(dims <= x.dims, "columns must be of dims of their tensor");
  std::vector<uint8_t> copy;
  std::optional<Matrix> matrix = as_columns(x, dims);
  if (!matrix) {
    copy.resize(x.elements() * x.type.bytes + 1);
    Tensor dense = x;
    dense.data = copy.data();
    dense.set_contiguous();
    copy_tensor(x, dense, threads);
    matrix = as_columns(dense, dims);
  }
  require(made.elements() == matrix->columns,
          "each column must have its place in the result");
  memory(reinterpret_cast<uintptr_t>(x.data), x.elements() == 0);
  const SumsCall call{*matrix, false, is_mean, contiguous_memory(made),
                      made.type.dtype()};
  values.done();
  run_sums(call, threads);
}

} // namespace steelyard
