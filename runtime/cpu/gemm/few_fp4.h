// Few rows times FP4 columns, decoded on the way to the sums: memory is read
// once and nothing is written but the sums. Included by kernel sources only.
//
// There are three kinds of rows. FP4 rows are integers (integer.h). E4M3 rows
// are integers of 19 bits, and three signed digits to the base of 256: products
// are exact within a unit of 16 k. Other rows are float32, and so are their
// products.
#pragma once

#include "cpu/gemm/integer.h"
#include "cpu/gemm/panels.h"

namespace steelyard::STEELYARD_ISA {

// A slice of a row of E4M3 codes, times 2^9; the digits of a unit in the quads
// of IntegerRow.
struct DigitRow {
  static constexpr int kDigits = 3;

  int8_t digits[kDigits][kSlice];
  int32_t offsets[kSliceUnits]; // -12 * sum of codes
  float scales[kSliceUnits];    // times 2^-9; NaN where a code is
};

// A slice of a row, each 8 k in the order in which `expand_floats` has them.
struct FloatRow {
  float values[kSlice];
};

static constexpr int kFloatOrder[8] = {0, 4, 2, 6, 1, 5, 3, 7};

// Doubled values of 8 columns by 8 k: lanes of `low` are two of each of the
// columns 0, 1, 4, 5, those of `high` two of each of the others. A pair of
// lanes holds k as in kFloatOrder.
struct ExpandedFloats {
  Floats8 low[4], high[4];
};

[[gnu::always_inline]] static inline ExpandedFloats
expand_floats(const uint8_t *codes) {
  // The bytes of a bfloat16.
  constexpr Bytes16 lower = {0, 0x80, 0, 0x40, 0x80, 0xc0, 0, 0x40,
                             0, 0x80, 0, 0x40, 0x80, 0xc0, 0, 0x40};
  constexpr Bytes16 upper = {0,    0x3f, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41,
                             0x80, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0, 0xc1, 0xc1};
  const Bytes32 lowers = join(lower, lower), uppers = join(upper, upper);
  const Bytes32 bytes = load<Bytes32>(codes);
  const Bytes32 nibbles[2] = {
      bytes & uint8_t{15}, as<Bytes32>(as<Halves16>(bytes) >> 4) & uint8_t{15}};
  ExpandedFloats out;
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const Bytes32 low_bytes = look_up(lowers, nibbles[odd]),
                  high_bytes = look_up(uppers, nibbles[odd]);
    const Words8 low = as<Words8>(zip_low(low_bytes, high_bytes)),
                 high = as<Words8>(zip_high(low_bytes, high_bytes));
    out.low[2 * odd] = as<Floats8>(low << 16);
    out.low[2 * odd + 1] = as<Floats8>(low & 0xffff0000u);
    out.high[2 * odd] = as<Floats8>(high << 16);
    out.high[2 * odd + 1] = as<Floats8>(high & 0xffff0000u);
  }
  return out;
}

static inline Floats8 broadcast_pair(const float *pair) {
  uint64_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return as<Floats8>(broadcast(bits));
}

// Where the sums of groups of columns go: `apart` from group to group.
struct GroupSums {
  float *sums;
  int64_t stride, apart;
  bool first; // nothing is there yet

  inline void add(int row, int group, Floats8 sum) const {
    float *target = sums + row * stride + group * apart;
    store(target, first ? sum : load<Floats8>(target) + sum);
  }
};

// Of a block of k, two chains of each so that none waits for itself.
template <int Rows> struct FloatSums {
  static constexpr int kChains = Rows == 1 ? 2 : 1;

  Floats8 low[kChains][Rows] = {}, high[kChains][Rows] = {};

  // += half a unit: 8 k.
  template <int Chain>
  [[gnu::always_inline]] inline void add(const uint8_t *codes,
                                         const FloatRow *rows, int64_t k) {
    constexpr int chain = Chain % kChains;
    const ExpandedFloats values = expand_floats(codes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Floats8 pair = broadcast_pair(rows[r].values + k + 2 * j);
        low[chain][r] = multiply_add(values.low[j], pair, low[chain][r]);
        high[chain][r] = multiply_add(values.high[j], pair, high[chain][r]);
      }
  }

  [[gnu::always_inline]] inline void
  add_unit(const uint8_t *codes, const FloatRow *rows, int64_t unit) {
    add<0>(codes, rows, unit * kUnitBlock);
    add<1>(codes + kUnitBytes / 2, rows, unit * kUnitBlock + 8);
  }

  inline Floats8 lows(int r) const {
    return kChains == 1 ? low[0][r] : low[0][r] + low[kChains - 1][r];
  }
  inline Floats8 highs(int r) const {
    return kChains == 1 ? high[0][r] : high[0][r] + high[kChains - 1][r];
  }
};

// Sums of rows and groups of columns, over `count` units.
template <int Rows, int Groups, class Scales>
static inline void
multiply_groups(const FloatRow *rows, const GroupUnits (&units)[Groups],
                const Scales &scales, int64_t count, const GroupSums &out) {
  Floats8 low[Groups][Rows] = {}, high[Groups][Rows] = {};
  for (int64_t block = 0; block < count; block += Scales::kUnits)
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      const uint8_t *codes = units[g].codes + kUnitBytes * block;
      FloatSums<Rows> sums;
      __builtin_prefetch(codes + kBytesAhead);
      sums.add_unit(codes, rows, block);
      if (Scales::kUnits == 2 && block + 1 < count) {
        __builtin_prefetch(codes + kUnitBytes + kBytesAhead);
        sums.add_unit(codes + kUnitBytes, rows, block + 1);
      }
      const Words8 scale = as<Words8>(
          scales.at(units[g].scales + block / Scales::kUnits * kGroupColumns));
      const Floats8 low_scale = as<Floats8>(zip_low(scale, scale)),
                    high_scale = as<Floats8>(zip_high(scale, scale));
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        low[g][r] = multiply_add(sums.lows(r), low_scale, low[g][r]);
        high[g][r] = multiply_add(sums.highs(r), high_scale, high[g][r]);
      }
    }
  for (int g = 0; g < Groups; ++g)
    for (int r = 0; r < Rows; ++r)
      out.add(r, g, sums_of_pairs(low[g][r], high[g][r]));
}

// sum + unit `b` of a row of digits times that of 8 columns.
static inline Floats8 add_unit(const DigitRow &row, int64_t b,
                               const Bytes32 (&quads)[4], Floats8 scale,
                               Floats8 sum) {
  SignedWords8 digits[DigitRow::kDigits];
#pragma GCC unroll 3
  for (int d = 0; d < DigitRow::kDigits; ++d) {
    ByteProducts products{};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      products = add_products(
          products, quads[j],
          as<SignedBytes32>(broadcast_quad(reinterpret_cast<const uint8_t *>(
              row.digits[d] + kUnitBlock * b + 4 * j))));
    digits[d] = total_of(products);
  }
  const SignedWords8 total = digits[0] + (digits[1] << 8) + (digits[2] << 16) +
                             broadcast(row.offsets[b]);
  return multiply_add(to_float(total) * broadcast(row.scales[b]), scale, sum);
}

// Of rows of integers: signed ones, or digits.
template <int Rows, int Groups, class Row, class Scales>
static inline void
multiply_groups(const Row *rows, const GroupUnits (&units)[Groups],
                const Scales &scales, int64_t count, const GroupSums &out) {
  const Bytes16 doubled = doubled_codes(kCodeOffset);
  const Bytes32 table = join(doubled, doubled);
  Floats8 sum[Groups][Rows];
  for (int g = 0; g < Groups; ++g)
    for (int r = 0; r < Rows; ++r)
      sum[g][r] = Floats8{};
  for (int64_t b = 0; b < count; ++b)
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      const uint8_t *codes = units[g].codes + kUnitBytes * b;
      __builtin_prefetch(codes + kBytesAhead);
      Bytes32 quads[4];
      expand_unit(codes, table, quads);
      const Floats8 scale =
          scales.at(units[g].scales + b / Scales::kUnits * kGroupColumns);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r)
        sum[g][r] = add_unit(rows[r], b, quads, scale, sum[g][r]);
    }
  for (int g = 0; g < Groups; ++g)
    for (int r = 0; r < Rows; ++r)
      out.add(r, g, sum[g][r]);
}

} // namespace steelyard::STEELYARD_ISA
