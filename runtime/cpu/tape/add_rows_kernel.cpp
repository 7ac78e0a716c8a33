#include "cpu/tape/add_rows_kernel.h"

#include "cpu/operations.h"
#include "cpu/rows/add_rows.h"
#include "cpu/tape/indices.h"

namespace steelyard {

void AddRowsKernel::run(const Values &values, int threads) const {
  const Matrix added = values.matrix(rows);
  const Tensor made = values.tensor(out);
  require(made.dims == 2 && made.sizes[1] == added.columns &&
              made.type.dtype() == added.dtype,
          "a table must have rows like those that are added to it");
  const std::vector<int64_t> numbers =
      indices_of(values.tensor(indices), made.sizes[0]);
  require(static_cast<int64_t>(numbers.size()) == added.rows,
          "each row must have an index");
  const AddRowsCall call{added, numbers.data(), padding,
                         contiguous_memory(made)};
  values.done();
  run_add_rows(call, made.sizes[0], threads);
}

} // namespace steelyard
