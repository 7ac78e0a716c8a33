#include "cpu/gemm/packed_weight.h"

#include <algorithm>
#include <cstring>

namespace steelyard {
namespace {

constexpr int64_t kBlockBytes = kUnitBlock / 2, kQuadBytes = kBlockBytes / 2;

// Calls `move(row bytes, unit bytes, number)` for each quad of codes.
template <class F>
void for_each_quad(const CompactWeight &weight, const F &move) {
  const PackedLayout layout = weight.layout();
  const int64_t row_bytes = (weight.k + 1) / 2;
  for (int64_t column = 0; column < weight.columns; ++column)
    for (int64_t byte = 0; byte < row_bytes; byte += kQuadBytes) {
      const int64_t unit = column / kGroupColumns * layout.blocks +
                           byte / kBlockBytes,
                    half = byte / kQuadBytes % 2, lane = column % kGroupColumns;
      move(column * row_bytes + byte,
           unit * kUnitBytes + (half * kGroupColumns + lane) * kQuadBytes,
           std::min(kQuadBytes, row_bytes - byte));
    }
}

template <class F>
void for_each_scale(const CompactWeight &weight, const F &move) {
  const PackedLayout layout = weight.layout();
  for (int64_t column = 0; column < weight.columns; ++column)
    for (int64_t block = 0; block < layout.blocks; ++block)
      move(column * layout.blocks + block,
           (column / kGroupColumns * layout.blocks + block) * kGroupColumns +
               column % kGroupColumns);
}

} // namespace

// A weight without columns may have no memory at all.
void pack_weight(const CompactWeight &weight, uint8_t *packed) {
  const PackedLayout layout = weight.layout();
  if (!packed)
    return;
  std::memset(packed, 0, layout.amax());
  const int64_t row_bytes = (weight.k + 1) / 2;
  for_each_quad(weight, [&](int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(packed + to, weight.codes + from, bytes);
    if (weight.k % 2 && (from + bytes) % row_bytes == 0)
      packed[to + bytes - 1] &= 15;
  });
  for_each_scale(weight, [&](int64_t from, int64_t to) {
    packed[layout.scales() + to] = weight.scales[from];
  });
  if (layout.levels > 0)
    std::memcpy(packed + layout.amax(), weight.amax,
                layout.levels * sizeof(float));
}

void unpack_weight(const uint8_t *packed, const CompactWeight &weight) {
  const PackedLayout layout = weight.layout();
  if (!packed)
    return;
  for_each_quad(weight, [&](int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(weight.codes + to, packed + from, bytes);
  });
  for_each_scale(weight, [&](int64_t to, int64_t from) {
    weight.scales[to] = packed[layout.scales() + from];
  });
  if (weight.amax && layout.levels > 0)
    std::memcpy(weight.amax, packed + layout.amax(),
                layout.levels * sizeof(float));
}

} // namespace steelyard
