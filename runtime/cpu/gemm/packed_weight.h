// FP4 weights packed once, in the one layout that every product reads.
//
// Units of 8 columns by 16 k, [group of columns][unit of k]: 64 bytes of codes
// in two halves, each with 4 bytes (a quad) of every column. The codes of a
// column are in the order of its row (k even in low nibbles, odd in high ones).
// Then 8 scale bytes per block of k, of one unit or two, in the same order.
// Then, from a multiple of 64 bytes, the float32 amaxes, or the ranges of E8M0
// scales. What the weight does not have is zero.
#pragma once

#include <cstdint>

#include "cpu/formats/scheme.h"

namespace steelyard {

inline constexpr int64_t kGroupColumns = 8, kUnitBlock = 16;
inline constexpr int64_t kUnitBytes = 64;

// Binary exponents of the scales that are finite and not zero; low > high when
// there is none.
struct ScaleRange {
  int32_t low, high;
};

// Of the E8M0 scales of a weight, so that no product looks for them.
struct PackedRanges {
  ScaleRange all, used; // used: of blocks with a code that is not zero
};

struct PackedLayout {
  int64_t groups, units, blocks;
  int64_t level_bytes; // of amaxes or ranges

  static PackedLayout of(SchemeBits scheme, int64_t columns, int64_t k) {
    const int64_t amaxes = amax_count(scheme, {columns, k}) * sizeof(float);
    const int64_t ranges = scheme.has_amax() ? 0 : sizeof(PackedRanges);
    return {ceil_div(columns, kGroupColumns), ceil_div(k, kUnitBlock),
            ceil_div(k, scheme.block_side()), amaxes + ranges};
  }
  int64_t scales() const { return groups * units * kUnitBytes; }
  int64_t levels() const {
    return ceil_div(scales() + groups * blocks * kGroupColumns, 64) * 64;
  }
  int64_t size() const { return levels() + level_bytes; }
};

// A compact copy: codes (columns, ceil(k / 2)), scales (columns, blocks of k).
struct CompactWeight {
  SchemeBits scheme;
  uint8_t *codes, *scales;
  float *amax; // null where there is none
  int64_t columns, k;

  PackedLayout layout() const { return PackedLayout::of(scheme, columns, k); }
};

void pack_weight(const CompactWeight &weight, uint8_t *packed);
void unpack_weight(const uint8_t *packed, const CompactWeight &weight);

} // namespace steelyard
