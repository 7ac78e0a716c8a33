#include "cpu/tape/positions_kernel.h"

#include <cstring>

namespace steelyard {

void PositionsKernel::run(const Values &values, int) const {
  const Tensor from = values.tensor(start), to = values.tensor(out);
  require(from.elements() == 1 && from.type.is_integer(8) &&
              to.type.is_integer(8),
          "positions must count on from one integer of 64 bits");
  contiguous_memory(to);
  values.done();
  // Unsigned: beyond the largest number it goes on from the smallest, as in
  // torch.
  uint64_t first;
  std::memcpy(&first, from.data, sizeof first);
  first += static_cast<uint64_t>(offset);
  const int64_t count = to.elements();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = first + static_cast<uint64_t>(i);
    std::memcpy(to.data + i * to.type.bytes, &number, sizeof number);
  }
}

} // namespace steelyard
