#include "cpu/gemm/decode.h"
#include "cpu/gemm/value_panels.h"

namespace steelyard::STEELYARD_ISA {

// Every E8M0 byte but NaN is a finite power of two. Two loops over each piece,
// each of which vectorizes, while it is in the nearest cache.
static ScaleRange range_of_bytes(const uint8_t *bytes, int64_t n) {
  constexpr int64_t piece = 4096;
  uint8_t low = 255, next = 0; // next: one more than the largest, NaN wraps
  for (int64_t begin = 0; begin < n; begin += piece) {
    const int64_t end = smaller(begin + piece, n);
    for (int64_t j = begin; j < end; ++j)
      low = bytes[j] < low ? bytes[j] : low;
    for (int64_t j = begin; j < end; ++j) {
      const uint8_t after = static_cast<uint8_t>(bytes[j] + 1);
      next = after > next ? after : next;
    }
  }
  return low == 255 ? ScaleRange{1, 0} : ScaleRange{low - 127, next - 128};
}

static bool is_zero_block(const GemmOperand &x, int64_t i, int64_t p) {
  const int64_t bottom = smaller(i + outer_block(x), x.outer);
  const int64_t end = smaller(p + k_block(x), x.k);
  for (int64_t r = i; r < bottom; ++r)
    for (int64_t q = p; q < end; ++q)
      if (code_at(x, r, q) != 0.0f)
        return false;
  return true;
}

// A scale of zero or one that is not finite makes the same panel in any unit.
static bool has_exponent(float scale) {
  const uint32_t magnitude = bits_of(scale) & kAbsMask;
  return magnitude != 0 && magnitude < kInfinity;
}

// A subnormal scale counts as the largest of them, and as what it is.
static void include(ScaleRange &range, float scale) {
  const uint32_t bits = bits_of(scale) & kAbsMask;
  const int biased = static_cast<int>(bits >> 23);
  const int low = biased ? biased - 127 : -118 - __builtin_clz(bits),
            high = biased ? low : -127;
  range.low = low < range.low ? low : range.low;
  range.high = high > range.high ? high : range.high;
}

static ScaleRange range_of_blocks(const GemmOperand &x, bool skip_zeros) {
  ScaleRange range{1000, -1000};
  for (int64_t i = 0; i < x.outer; i += outer_block(x))
    for (int64_t p = 0; p < x.k; p += k_block(x)) {
      const float scale = scale_at(x, scale_index(x, i, p));
      if (has_exponent(scale) && !(skip_zeros && is_zero_block(x, i, p)))
        include(range, scale);
    }
  return range;
}

// Of values instead of scales.
static ScaleRange range_of_values(const GemmOperand &x) {
  constexpr int64_t piece = 1024;
  constexpr int32_t infinity = static_cast<int32_t>(kInfinity);
  float values[piece];
  int32_t low = infinity, high = 0;
  for (int64_t i = 0; i < x.outer; ++i)
    for (int64_t p = 0; p < x.k; p += piece) {
      const int64_t n = smaller(piece, x.k - p);
      load_values(x.values, i, p, n, values);
      for (int64_t j = 0; j < n; ++j) {
        const int32_t bits =
            static_cast<int32_t>(bits_of(values[j]) & kAbsMask);
        const bool counts = bits != 0 && bits < infinity;
        low = counts && bits < low ? bits : low;
        high = counts && bits > high ? bits : high;
      }
    }
  ScaleRange range{1000, -1000};
  if (high > 0) {
    include(range, float_of(low));
    include(range, float_of(high));
  }
  return range;
}

ScaleRange gemm_scale_range(const GemmOperand &x, bool skip_zeros) {
  if (x.element == Element::values)
    return range_of_values(x);
  if (x.ranges)
    return skip_zeros ? x.ranges->used : x.ranges->all;
  if (x.scale_type != ScaleType::e8m0 || skip_zeros)
    return range_of_blocks(x, skip_zeros);
  return range_of_bytes(static_cast<const uint8_t *>(x.scales), x.scale_count);
}

} // namespace steelyard::STEELYARD_ISA
