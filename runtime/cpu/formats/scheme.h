// A scheme as callers describe it to the kernels, and the sizes of what a copy
// of a scheme stores. tests/runtime/test_contract.py holds all of it against
// steelyard.formats.
#pragma once

#include <cstdint>

#include "cpu/formats/scale_rules.h"

namespace steelyard {

enum class Family : int { tensor, row, block, mx, mxfp4, nvfp4 };
// `values`: not quantized, as one operand of a GEMM may be; no scheme has it.
enum class Element : int { e4m3, e5m2, e2m1, values };
enum class FourOverSix : int { none, mae, mse };

// One field of the bits of a scheme. Values have names, in the order of their
// enum; a flag has none.
struct SchemeField {
  const char *name;
  int shift, width;
  const char *values[6] = {};

  constexpr int of(int bits) const {
    return bits >> shift & ((1 << width) - 1);
  }
};

inline constexpr SchemeField kFamilyField{
    "family", 0, 3, {"tensor", "row", "block", "mx", "mxfp4", "nvfp4"}};
inline constexpr SchemeField kElementField{
    "element", 3, 2, {"f8E4M3FN", "f8E5M2", "f4E2M1FN"}};
inline constexpr SchemeField kRuleField{
    "rule", 5, 2, {"rceil", "floor", "ceil", "even"}};
inline constexpr SchemeField kFourOverSixField{
    "four_over_six", 7, 2, {"none", "mae", "mse"}};
inline constexpr SchemeField kTiledField{"tiled", 9, 1};
inline constexpr SchemeField kPowerOfTwoField{"power_of_two", 10, 1};
inline constexpr SchemeField kRhtField{"rht", 11, 1};
inline constexpr SchemeField kStochasticField{"stochastic", 12, 1};
inline constexpr SchemeField kRowScaledField{"row_scaled", 13, 1};
// Of nvfp4: blocks of 32 instead of 16.
inline constexpr SchemeField kWideField{"wide", 14, 1};
// Of a GEMM's operands only: it is a packed weight, or its parts are those of
// the other usage.
inline constexpr SchemeField kPackedField{"packed", 15, 1};
inline constexpr SchemeField kBorrowedField{"borrowed", 16, 1};
// The scale is given as the factor of decoded values; of nvfp4, its second
// level is, which the copy keeps where others keep their amax.
inline constexpr SchemeField kStaticField{"is_static", 17, 1};
// Of static nvfp4: decoded values are divided by that level.
inline constexpr SchemeField kDivisorField{"is_divisor", 18, 1};

inline constexpr const SchemeField *kSchemeFields[] = {
    &kFamilyField,    &kElementField,    &kRuleField,   &kFourOverSixField,
    &kTiledField,     &kPowerOfTwoField, &kRhtField,    &kStochasticField,
    &kRowScaledField, &kWideField,       &kPackedField, &kBorrowedField,
    &kStaticField,    &kDivisorField};

struct SchemeBits {
  int bits;

  Family family() const { return static_cast<Family>(kFamilyField.of(bits)); }
  Element element() const {
    return static_cast<Element>(kElementField.of(bits));
  }
  Rule rule() const { return static_cast<Rule>(kRuleField.of(bits)); }
  FourOverSix four_over_six() const {
    return static_cast<FourOverSix>(kFourOverSixField.of(bits));
  }
  bool tiled() const { return kTiledField.of(bits); }
  bool power_of_two() const { return kPowerOfTwoField.of(bits); }
  bool rht() const { return kRhtField.of(bits); }
  bool stochastic() const { return kStochasticField.of(bits); }
  bool row_scaled() const { return kRowScaledField.of(bits); }
  bool wide() const { return kWideField.of(bits); }
  bool is_packed_weight() const { return kPackedField.of(bits); }
  bool borrowed() const { return kBorrowedField.of(bits); }
  bool is_static() const { return kStaticField.of(bits); }
  bool is_divisor() const { return kDivisorField.of(bits); }

  // The side of a block of scales; 1 where a scale is that of a tensor or row.
  int64_t block_side() const {
    constexpr int64_t sides[] = {1, 1, 128, 32, 32, 16};
    return wide() ? 32 : sides[static_cast<int>(family())];
  }
  bool has_amax() const {
    return family() == Family::tensor || family() == Family::nvfp4;
  }
  // nvfp4: what a measured amax is mapped to.
  float range() const {
    constexpr float codes = 6.0f, scales = 448.0f, fewer_scales = 256.0f;
    return codes *
           (four_over_six() == FourOverSix::none ? scales : fewer_scales);
  }
  // nvfp4: what decoded values are multiplied by, from what a copy keeps.
  double multiplier(float kept) const {
    if (is_divisor())
      return 1.0 / kept;
    return is_static() ? kept : static_cast<double>(kept) / range();
  }
};

inline int64_t ceil_div(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

// Stored rows and columns of a copy of an (M, N) matrix.
struct StoredShape {
  int64_t rows, columns;
};

inline StoredShape stored_shape(SchemeBits scheme, bool columnwise, int64_t M,
                                int64_t N) {
  const bool transposed = columnwise && scheme.family() != Family::mx;
  const int64_t rows = transposed ? N : M, columns = transposed ? M : N;
  return {rows, scheme.rht() ? ceil_div(columns, 16) * 16 : columns};
}

// Bytes of a row of codes.
inline int64_t codes_stride(SchemeBits scheme, StoredShape stored) {
  return scheme.element() == Element::e2m1 ? ceil_div(stored.columns, 2)
                                           : stored.columns;
}

// Bytes of a row of compact scales; 0 for the one scale of a tensor.
inline int64_t scales_stride(SchemeBits scheme, bool columnwise,
                             StoredShape stored) {
  const int64_t blocks = ceil_div(stored.columns, scheme.block_side());
  switch (scheme.family()) {
  case Family::tensor:
    return 0;
  case Family::row:
    return sizeof(float);
  case Family::block:
    return blocks * sizeof(float);
  case Family::mx:
    return columnwise ? stored.columns : blocks;
  case Family::mxfp4:
  case Family::nvfp4:
    return blocks;
  }
  return 0;
}

// Rows of compact scales.
inline int64_t scale_rows(SchemeBits scheme, bool columnwise,
                          StoredShape stored) {
  const bool down = scheme.family() == Family::mx && columnwise;
  const bool square = scheme.family() == Family::block && scheme.tiled();
  return down || square ? ceil_div(stored.rows, scheme.block_side())
                        : stored.rows;
}

// Amaxes that a copy keeps.
inline int64_t amax_count(SchemeBits scheme, StoredShape stored) {
  return !scheme.has_amax() ? 0 : scheme.row_scaled() ? stored.rows : 1;
}

} // namespace steelyard
