#include "cpu/tape/indices.h"

#include <cstring>
#include <string>

namespace steelyard {

std::vector<int64_t> indices_of(const Tensor &x, int64_t count) {
  require(x.type.is_integer(8) || x.type.is_integer(4),
          "indices must be integers of 32 or 64 bits");
  std::vector<int64_t> found(x.elements());
  for (size_t i = 0; i < found.size(); ++i) {
    const uint8_t *at =
        x.data + offset_of(x, x.dims, static_cast<int64_t>(i)) * x.type.bytes;
    if (x.type.bytes == 8) {
      std::memcpy(&found[i], at, sizeof(int64_t));
    } else {
      int32_t index;
      std::memcpy(&index, at, sizeof index);
      found[i] = index;
    }
    if (found[i] < 0 || found[i] >= count)
      throw std::out_of_range("index " + std::to_string(found[i]) +
                              " is out of range: it must be that of one of " +
                              std::to_string(count) + " rows");
  }
  return found;
}

} // namespace steelyard
