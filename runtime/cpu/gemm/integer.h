// FP4 x FP4 in integers, exact within each unit of 16 k: a doubled E2M1 value
// is an integer of at most 12. Included by kernel sources only.
//
// Processors multiply unsigned by signed bytes, so one side is offset by 12,
// and 12 times the sum of the other is taken off again. A column that comes
// from memory must be the signed one, a column in a register may be unsigned.
#pragma once

#include "cpu/gemm/fp4_columns.h"

namespace steelyard::STEELYARD_ISA {

// Groups of columns whose sums a row keeps in registers.
static constexpr int64_t kPanelGroups = kColumnUnit / kGroupColumns;
static constexpr int kCodeOffset = 12;

// A slice of a row; the codes of a block in quads: even k below 8, odd k
// below 8, even k from 8, odd k from 8.
struct IntegerRow {
  uint8_t codes[kSlice]; // offset by 12, or signed
  float scales[kSliceUnits];
  float offsets[kSliceUnits]; // -12 * sum of codes * scale; for signed codes
};

// 8 columns by 16 k, the same quads of each column.
struct alignas(32) IntegerUnit {
  int8_t codes[4][32];
  float scales[8], offsets[8];
};

// Doubled values of E2M1 codes, with an offset.
static inline Bytes16 doubled_codes(int offset) {
  constexpr Bytes16 table = {0, 1,    2,    3,    4,    6,    8,    12,
                             0, 0xff, 0xfe, 0xfd, 0xfc, 0xfa, 0xf8, 0xf4};
  return table + static_cast<uint8_t>(offset);
}

// The four quads of 8 columns of a unit.
static inline void expand_unit(const uint8_t *codes, Bytes32 table,
                               Bytes32 (&quads)[4]) {
  for (int half = 0; half < 2; ++half) {
    const Bytes32 pairs = load<Bytes32>(codes + 32 * half);
    quads[2 * half] = look_up(table, pairs & uint8_t{15});
    quads[2 * half + 1] =
        look_up(table, as<Bytes32>(as<Halves16>(pairs) >> 4) & uint8_t{15});
  }
}

static inline SignedWords8 sum_of_pairs(SignedHalves16 pairs) {
  return dot_pairs(pairs, as<SignedHalves16>(broadcast(uint16_t{1})));
}

static inline void store_unit(const uint8_t *codes, Floats8 scales,
                              IntegerUnit &unit) {
  const Bytes16 table = doubled_codes(0);
  Bytes32 quads[4];
  expand_unit(codes, join(table, table), quads);
  for (int j = 0; j < 4; ++j)
    store(unit.codes[j], quads[j]);
  const Bytes32 sums = (quads[0] + quads[1]) + (quads[2] + quads[3]);
  constexpr uint16_t offset_pair = kCodeOffset << 8 | kCodeOffset;
  const SignedWords8 total = sum_of_pairs(
      dot_pairs(as<Bytes32>(broadcast(offset_pair)), as<SignedBytes32>(sums)));
  store(unit.scales, scales);
  store(unit.offsets, to_float(total) * -scales);
}

static inline Bytes32 broadcast_quad(const uint8_t *codes) {
  int32_t quad;
  std::memcpy(&quad, codes, sizeof quad);
  return as<Bytes32>(broadcast(quad));
}

// `k` of row `i` from `p`.
static inline void fill_integer_row(const GemmOperand &x, int64_t i, int64_t p,
                                    int64_t k, int offset, IntegerRow &row) {
  alignas(32) uint8_t codes[kSlice / 2];
  copy_codes(x, i, p, k, codes);
  const Bytes16 table = doubled_codes(offset);
  for (int64_t q = 0; q < k; q += 32) {
    const Bytes16 pairs = load<Bytes16>(codes + q / 2);
    const Words4 even = as<Words4>(look_up(table, pairs & uint8_t{15})),
                 odd = as<Words4>(look_up(table, pairs >> 4));
    store(row.codes + q, zip_low(even, odd));
    store(row.codes + q + 16, zip_high(even, odd));
  }
  with_scales(x, [&](const auto &scales) {
    alignas(16) uint8_t bytes[kSliceUnits] = {};
    alignas(32) float found[kSliceUnits];
    if (k > 0)
      std::memcpy(bytes,
                  static_cast<const uint8_t *>(x.scales) + scale_index(x, i, p),
                  blocks_in(x, k));
    for (int64_t b = 0; b < kSliceUnits; b += 8)
      store(found + b, scales.at(bytes + b));
    for (int64_t b = 0; b < kSliceUnits; ++b)
      row.scales[b] = found[b / scales.kUnits];
  });
}

// sums (+)= one row, offset, times a panel of units [block][kPanelGroups].
static inline void multiply_integer_row(const IntegerRow &row,
                                        const IntegerUnit *units,
                                        int64_t blocks, float *sums,
                                        bool first) {
  Floats8 sum[kPanelGroups];
  for (int g = 0; g < kPanelGroups; ++g)
    sum[g] = first ? Floats8{} : load<Floats8>(sums + 8 * g);
  for (int64_t b = 0; b < blocks; ++b) {
    Bytes32 quads[4];
    for (int j = 0; j < 4; ++j)
      quads[j] = broadcast_quad(row.codes + kUnitBlock * b + 4 * j);
    const Floats8 scale = broadcast(row.scales[b]);
#pragma GCC unroll 4
    for (int g = 0; g < kPanelGroups; ++g) {
      const IntegerUnit &unit = units[b * kPanelGroups + g];
      ByteProducts products{};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        products = add_products(products, quads[j],
                                load<SignedBytes32>(unit.codes[j]));
      const Floats8 product =
          multiply_add(to_float(total_of(products)), load<Floats8>(unit.scales),
                       load<Floats8>(unit.offsets));
      sum[g] = multiply_add(product, scale, sum[g]);
    }
  }
  for (int g = 0; g < kPanelGroups; ++g)
    store(sums + 8 * g, sum[g]);
}

// sum + unit `b` of a signed row times that of 8 columns.
static inline Floats8 add_unit(const IntegerRow &row, int64_t b,
                               const Bytes32 (&quads)[4], Floats8 scale,
                               Floats8 sum) {
  Halves16 pairs{};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    pairs += as<Halves16>(dot_pairs(
        quads[j],
        as<SignedBytes32>(broadcast_quad(row.codes + kUnitBlock * b + 4 * j))));
  const Floats8 product =
      multiply_add(to_float(sum_of_pairs(as<SignedHalves16>(pairs))),
                   broadcast(row.scales[b]), broadcast(row.offsets[b]));
  return multiply_add(product, scale, sum);
}

} // namespace steelyard::STEELYARD_ISA
