// FP4 columns in units of 8 columns by 16 k, as packed_weight.h lays them out:
// where a weight is packed, or staged from its rows. Included by kernel sources
// only.
#pragma once

#include "cpu/gemm/decode.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/simd/simd.h"
#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int64_t kSliceUnits = kSlice / kUnitBlock;

// The units of a group of columns, and its scales.
struct GroupUnits {
  const uint8_t *codes, *scales;
};

struct alignas(64) StagedUnits {
  uint8_t codes[kSliceUnits][kUnitBytes];
  uint8_t scales[kSliceUnits][kGroupColumns];
};

static inline int64_t units_in(int64_t k) {
  return (k + kUnitBlock - 1) / kUnitBlock;
}

static inline int64_t blocks_in(const GemmOperand &x, int64_t k) {
  return (k + k_block(x) - 1) >> x.k_shift;
}

// The codes of row `i` from `p`, with zeros after them; there may be none.
static inline void copy_codes(const GemmOperand &x, int64_t i, int64_t p,
                              int64_t k, uint8_t *out) {
  const int64_t bytes = (k + 1) / 2;
  if (bytes > 0)
    std::memcpy(out, x.codes + i * x.codes_stride + p / 2, bytes);
  std::memset(out + bytes, 0, kSlice / 2 - bytes);
  if (k % 2)
    out[bytes - 1] &= 15;
}

// out[i] = the i-th four bytes of each of 8 rows.
static inline void transpose_quads(const uint8_t (*rows)[kSlice / 2],
                                   int64_t byte, uint8_t *out) {
  Words8 a[8], b[8];
  for (int i = 0; i < 8; ++i)
    a[i] = load<Words8>(rows[i] + byte);
  for (int i = 0; i < 8; i += 2) {
    b[i] = zip_low(a[i], a[i + 1]);
    b[i + 1] = zip_high(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      const Longs4 first = as<Longs4>(b[i + j]),
                   second = as<Longs4>(b[i + j + 2]);
      a[i + 2 * j] = as<Words8>(zip_low(first, second));
      a[i + 2 * j + 1] = as<Words8>(zip_high(first, second));
    }
  for (int i = 0; i < 4; ++i) {
    store(out + 32 * i, join_low(a[i], a[i + 4]));
    store(out + 32 * (i + 4), join_high(a[i], a[i + 4]));
  }
}

static inline GroupUnits stage_units(const GemmOperand &x, int64_t first,
                                     int64_t p, int64_t k,
                                     StagedUnits &staged) {
  alignas(64) uint8_t rows[kGroupColumns][kSlice / 2];
  const uint8_t *scales = static_cast<const uint8_t *>(x.scales);
  for (int64_t c = 0; c < kGroupColumns; ++c) {
    const bool exists = first + c < x.outer;
    if (exists)
      copy_codes(x, first + c, p, k, rows[c]);
    else
      std::memset(rows[c], 0, sizeof rows[c]);
    for (int64_t b = 0; b < blocks_in(x, k); ++b)
      staged.scales[b][c] =
          exists ? scales[scale_index(x, first + c, p) + b] : 0;
  }
  for (int64_t q = 0; q < k; q += 64)
    transpose_quads(rows, q / 2, staged.codes[q / kUnitBlock]);
  return {staged.codes[0], staged.scales[0]};
}

// The units of the 8 columns from `first`, k from `p`.
static inline GroupUnits packed_units(const GemmOperand &x, int64_t first,
                                      int64_t p) {
  return {x.codes + packed_code(x, first, p),
          static_cast<const uint8_t *>(x.scales) + scale_index(x, first, p)};
}

static inline GroupUnits units_of(const GemmOperand &x, int64_t first,
                                  int64_t p, int64_t k, StagedUnits &staged) {
  return x.is_packed_weight ? packed_units(x, first, p)
                            : stage_units(x, first, p, k, staged);
}

// Half the values of 8 E4M3 bytes.
static inline Floats8 half_scales(const uint8_t *bytes) {
  const SignedWords8 wide = widen_signed_bytes(bytes);
  const SignedWords8 nan = (wide & 0x7f) == broadcast(int32_t{0x7f});
  const Words8 placed = as<Words8>(wide) << 20 & 0x87f00000u;
  const Floats8 value = as<Floats8>(placed) * 0x1p119f;
  return as<Floats8>(as<SignedWords8>(value) | nan);
}

// Half of the scales of a group, in the operand's unit: codes are doubled.
// `Units` of k have the same.
template <int Units> struct E4M3Scales {
  static constexpr int kUnits = Units;

  explicit E4M3Scales(const GemmOperand &) {}
  inline Floats8 at(const uint8_t *bytes) const { return half_scales(bytes); }
};

struct E8M0Scales {
  static constexpr int kUnits = 2;

  explicit E8M0Scales(const GemmOperand &x)
      : lift(broadcast(exponent_of(x.unit) - 1)) {}

  // A scale that is beyond the range of the others belongs to zeros, and any
  // finite number does.
  inline Floats8 at(const uint8_t *bytes) const {
    const SignedWords8 wide = widen_signed_bytes(bytes) & 0xff;
    const SignedWords8 nan = wide == broadcast(int32_t{0xff});
    const SignedWords8 biased =
        minimum(maximum(wide + lift, broadcast(int32_t{1})),
                broadcast(int32_t{127 + 112}));
    return as<Floats8>((biased << 23) | nan);
  }

  SignedWords8 lift;

private:
  static inline int32_t exponent_of(double power) {
    uint64_t bits;
    std::memcpy(&bits, &power, sizeof bits);
    return static_cast<int32_t>(bits >> 52) - 1023;
  }
};

// Calls `f` with the scales that a column of FP4 codes has.
template <class F>
static inline void with_scales(const GemmOperand &x, const F &f) {
  if (x.scale_type == ScaleType::e8m0)
    f(E8M0Scales(x));
  else if (x.k_shift == 4)
    f(E4M3Scales<1>(x));
  else
    f(E4M3Scales<2>(x));
}

} // namespace steelyard::STEELYARD_ISA
