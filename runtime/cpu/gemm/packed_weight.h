// NVFP4 weights packed once, in the one layout that every integer product
// reads.
//
// Units of 8 columns by 16 k, [group of columns][block of k]: 64 bytes of codes
// in two halves, each with 4 bytes (a quad) of every column. The codes of a
// column are in the order of its row (k even in low nibbles, odd in high ones).
// Then 8 scale bytes per unit in the same order, then, from a multiple of 64
// bytes, the float32 amaxes. What the weight does not have is zero.
#pragma once

#include <cstdint>

namespace steelyard {

inline constexpr int64_t kGroupColumns = 8, kUnitBlock = 16;
inline constexpr int64_t kUnitBytes = 64;

struct PackedLayout {
  int64_t groups, blocks, levels; // levels: amaxes

  static PackedLayout of(int64_t columns, int64_t k, bool row_scaled) {
    return {(columns + kGroupColumns - 1) / kGroupColumns,
            (k + kUnitBlock - 1) / kUnitBlock, row_scaled ? columns : 1};
  }
  int64_t scales() const { return groups * blocks * kUnitBytes; }
  int64_t amax() const {
    return (scales() + groups * blocks * kGroupColumns + 63) / 64 * 64;
  }
  int64_t size() const { return amax() + levels * sizeof(float); }
};

// A compact copy: codes (columns, ceil(k / 2)), scales (columns, ceil(k / 16)).
struct CompactWeight {
  uint8_t *codes, *scales;
  float *amax; // null where nobody asks for it
  int64_t columns, k;
  bool row_scaled;

  PackedLayout layout() const {
    return PackedLayout::of(columns, k, row_scaled);
  }
};

void pack_weight(const CompactWeight &weight, uint8_t *packed);
void unpack_weight(const uint8_t *packed, const CompactWeight &weight);

} // namespace steelyard
