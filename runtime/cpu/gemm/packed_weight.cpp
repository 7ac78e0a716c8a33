#include "cpu/gemm/packed_weight.h"

#include <algorithm>
#include <cstring>

namespace steelyard {
namespace {

constexpr int64_t kUnitRowBytes = kUnitBlock / 2, kQuadBytes = 4;

// Calls `move(row bytes, unit bytes, number)` for each quad of codes.
template <class F>
void for_each_quad(const CompactWeight &weight, const F &move) {
  const PackedLayout layout = weight.layout();
  const int64_t row_bytes = (weight.k + 1) / 2;
  for (int64_t column = 0; column < weight.columns; ++column)
    for (int64_t byte = 0; byte < row_bytes; byte += kQuadBytes) {
      const int64_t unit = column / kGroupColumns * layout.units +
                           byte / kUnitRowBytes,
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

// Of one block of a column. The last byte of a row may hold but one code.
bool has_values(const CompactWeight &weight, int64_t column, int64_t block) {
  const int64_t row_bytes = (weight.k + 1) / 2, pairs = weight.k / 2,
                bytes = weight.scheme.block_side() / 2;
  const uint8_t *row = weight.codes + column * row_bytes;
  const int64_t first = block * bytes, end = std::min(first + bytes, row_bytes);
  return std::any_of(row + first, row + std::min(end, pairs),
                     [](uint8_t pair) { return (pair & 0x77) != 0; }) ||
         (end > pairs && (row[pairs] & 0x07) != 0);
}

void include(ScaleRange &range, int exponent) {
  range.low = std::min(range.low, exponent);
  range.high = std::max(range.high, exponent);
}

PackedRanges ranges_of(const CompactWeight &weight) {
  constexpr ScaleRange none{1000, -1000};
  constexpr int bias = 127, nan = 255;
  PackedRanges ranges{none, none};
  const int64_t blocks = weight.layout().blocks;
  for (int64_t column = 0; column < weight.columns; ++column)
    for (int64_t block = 0; block < blocks; ++block) {
      const int byte = weight.scales[column * blocks + block];
      if (byte == nan)
        continue;
      include(ranges.all, byte - bias);
      if (has_values(weight, column, block))
        include(ranges.used, byte - bias);
    }
  return ranges;
}

} // namespace

// A weight without columns may have no memory at all.
void pack_weight(const CompactWeight &weight, uint8_t *packed) {
  const PackedLayout layout = weight.layout();
  if (!packed)
    return;
  std::memset(packed, 0, layout.levels());
  const int64_t row_bytes = (weight.k + 1) / 2;
  for_each_quad(weight, [&](int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(packed + to, weight.codes + from, bytes);
    if (weight.k % 2 && (from + bytes) % row_bytes == 0)
      packed[to + bytes - 1] &= 15;
  });
  for_each_scale(weight, [&](int64_t from, int64_t to) {
    packed[layout.scales() + to] = weight.scales[from];
  });
  if (!weight.scheme.has_amax()) {
    const PackedRanges ranges = ranges_of(weight);
    std::memcpy(packed + layout.levels(), &ranges, sizeof ranges);
  } else if (layout.level_bytes > 0) {
    std::memcpy(packed + layout.levels(), weight.amax, layout.level_bytes);
  }
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
  if (weight.amax && layout.level_bytes > 0)
    std::memcpy(weight.amax, packed + layout.levels(), layout.level_bytes);
}

} // namespace steelyard
