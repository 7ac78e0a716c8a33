#include "cpu/gemm/few_fp4.h"

#include "cpu/gemm/store.h"
#include "cpu/gemm/value_panels.h"

namespace steelyard::STEELYARD_ISA {

// [slice][row]
template <class Row>
static Row *few_row(const GemmCall &call, int64_t slice, int64_t row) {
  return static_cast<Row *>(call.plan.row_panels) + slice * call.at.rows + row;
}

static void fill_row(const GemmOperand &x, int64_t i, int64_t p, int64_t k,
                     IntegerRow &row) {
  fill_integer_row(x, i, p, k, 0, row);
  for (int64_t b = 0; b < units_in(k); ++b) {
    int32_t sum = 0;
    for (int64_t j = 0; j < kUnitBlock; ++j)
      sum += static_cast<int8_t>(row.codes[kUnitBlock * b + j]);
    row.offsets[b] = static_cast<float>(-kCodeOffset * sum) * row.scales[b];
  }
}

// 2^9 times the value of an E4M3 code that is not NaN.
static inline int32_t integer_of(uint8_t code) {
  const int32_t exponent = code >> 3 & 15, mantissa = code & 7;
  const int32_t magnitude =
      exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
  return code & 0x80 ? -magnitude : magnitude;
}

static void fill_digits(const uint8_t *codes, DigitRow &row) {
  constexpr Bytes16 quads = {0, 2,  4,  6,  1, 3,  5,  7,
                             8, 10, 12, 14, 9, 11, 13, 15};
  alignas(32) int8_t digits[DigitRow::kDigits][kSlice];
  for (int64_t q = 0; q < kSlice; ++q) {
    const int32_t value = integer_of(codes[q]);
    const int8_t low = static_cast<int8_t>(value);
    const int32_t rest = (value - low) >> 8;
    const int8_t middle = static_cast<int8_t>(rest);
    digits[0][q] = low;
    digits[1][q] = middle;
    digits[2][q] = static_cast<int8_t>((rest - middle) >> 8);
  }
  for (int d = 0; d < DigitRow::kDigits; ++d)
    for (int64_t q = 0; q < kSlice; q += 16)
      store(row.digits[d] + q, look_up(load<Bytes16>(digits[d] + q), quads));
}

static void fill_row(const GemmOperand &x, int64_t i, int64_t p, int64_t k,
                     DigitRow &row) {
  alignas(32) uint8_t codes[kSlice] = {};
  if (k > 0)
    std::memcpy(codes, x.codes + i * x.codes_stride + p, k);
  fill_digits(codes, row);
  for (int64_t b = 0; b < units_in(k); ++b) {
    int32_t sum = 0;
    bool is_nan = false;
    for (int64_t j = 0; j < kUnitBlock; ++j) {
      const uint8_t code = codes[kUnitBlock * b + j];
      sum += integer_of(code);
      is_nan |= (code & 0x7f) == 0x7f;
    }
    const int64_t at = p + b * kUnitBlock;
    const float scale = panel_scale(scale_at(x, scale_index(x, i, at)), x.unit);
    row.offsets[b] = -kCodeOffset * sum;
    row.scales[b] = is_nan ? __builtin_nanf("") : scale * 0x1p-9f;
  }
}

template <Element E>
static void fill_floats(const PanelFiller<E> &filler, int64_t i, int64_t p,
                        int64_t k, FloatRow &row) {
  alignas(64) float values[kRowStride];
  filler.fill_rows(i, 1, p, k, values);
  for (int64_t q = 0; q < units_in(k) * kUnitBlock; q += 8)
    for (int64_t j = 0; j < 8; ++j)
      row.values[q + j] = values[q + kFloatOrder[j]];
}

template <class Row>
static void fill_rows(const GemmCall &call, int64_t begin, int64_t end) {
  for (int64_t slice = begin; slice < end; ++slice)
    for (int64_t row = 0; row < call.at.rows; ++row)
      fill_row(call.problem.a, call.at.row + row, call.at.k + slice * kSlice,
               slice_length(call, slice), *few_row<Row>(call, slice, row));
}

template <Element E>
static void fill_float_rows(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.a);
  for (int64_t slice = begin; slice < end; ++slice)
    for (int64_t row = 0; row < call.at.rows; ++row)
      fill_floats(filler, call.at.row + row, call.at.k + slice * kSlice,
                  slice_length(call, slice),
                  *few_row<FloatRow>(call, slice, row));
}

void fill_few_fp4(const GemmCall &call, int64_t begin, int64_t end) {
  const bool integers = call.plan.panels == Panels::integers;
  switch (call.problem.a.element) {
  case Element::e2m1:
    return integers ? fill_rows<IntegerRow>(call, begin, end)
                    : fill_float_rows<Element::e2m1>(call, begin, end);
  case Element::e4m3:
    return integers ? fill_rows<DigitRow>(call, begin, end)
                    : fill_float_rows<Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return fill_float_rows<Element::e5m2>(call, begin, end);
  case Element::values:
    return fill_float_rows<Element::values>(call, begin, end);
  }
}

template <class Row, class Scales> class FewRows {
public:
  FewRows(const GemmCall &call, const OutputTile<float> &tile,
          const Scales &scales)
      : call_(call), tile_(tile), scales_(scales) {}

  // Columns in the order of memory, or of several streams through it, which is
  // then read at its full speed.
  void multiply() const {
    StagedUnits staged;
    const bool streams = call_.at.rows == 1 && call_.problem.b.is_packed_weight;
    const int64_t apart =
        streams ? tile_.columns / (kStreams * kGroupColumns) * kGroupColumns
                : 0;
    for (int64_t j = 0; j < apart; j += kGroupColumns)
      for (int64_t slice = 0; slice < call_.at.slices; ++slice)
        multiply_streams(j, apart, slice);
    for (int64_t j = kStreams * apart; j < tile_.columns; j += kGroupColumns)
      for (int64_t slice = 0; slice < call_.at.slices; ++slice)
        multiply_group(j, slice, staged);
  }

private:
  // Rows that share the expanding of a unit.
  static constexpr int64_t kRowsAtOnce = 4;

  GroupSums sums_at(int64_t row, int64_t j, int64_t apart,
                    int64_t slice) const {
    return {tile_.sums + row * call_.plan.tile_columns + j,
            call_.plan.tile_columns, apart, call_.at.first_slab && slice == 0};
  }

  // One slice of kStreams groups from `j` in the tile, `apart` columns from
  // each other.
  void multiply_streams(int64_t j, int64_t apart, int64_t slice) const {
    GroupUnits units[kStreams];
    for (int64_t g = 0; g < kStreams; ++g)
      units[g] = packed_units(call_.problem.b,
                              call_.at.column + tile_.column + j + g * apart,
                              call_.at.k + slice * kSlice);
    multiply_groups<1>(few_row<Row>(call_, slice, 0), units, scales_,
                       units_in(slice_length(call_, slice)),
                       sums_at(0, j, apart, slice));
  }

  // One slice of the group of columns from `j` in the tile.
  void multiply_group(int64_t j, int64_t slice, StagedUnits &staged) const {
    const int64_t k = slice_length(call_, slice);
    const GroupUnits units[] = {
        units_of(call_.problem.b, call_.at.column + tile_.column + j,
                 call_.at.k + slice * kSlice, k, staged)};
    const int64_t parts = (tile_.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t row = tile_.rows * part / parts,
                    end = tile_.rows * (part + 1) / parts;
      multiply_rows(few_row<Row>(call_, slice, tile_.row + row), end - row,
                    units, units_in(k), sums_at(row, j, 0, slice));
    }
  }

  void multiply_rows(const Row *rows, int64_t count,
                     const GroupUnits (&units)[1], int64_t unit_count,
                     const GroupSums &out) const {
    switch (count) {
    case 1:
      return multiply_groups<1>(rows, units, scales_, unit_count, out);
    case 2:
      return multiply_groups<2>(rows, units, scales_, unit_count, out);
    case 3:
      return multiply_groups<3>(rows, units, scales_, unit_count, out);
    default:
      return multiply_groups<4>(rows, units, scales_, unit_count, out);
    }
  }

  const GemmCall &call_;
  const OutputTile<float> &tile_;
  const Scales &scales_;
};

template <class Row>
static void multiply_as(const GemmCall &call, int64_t begin, int64_t end) {
  with_scales(call.problem.b, [&](const auto &scales) {
    for (int64_t task = begin; task < end; ++task) {
      const OutputTile<float> tile = tile_of<float>(call, task);
      FewRows<Row, std::decay_t<decltype(scales)>>(call, tile, scales)
          .multiply();
      if (call.at.last_slab)
        store_tile(call, tile);
    }
  });
}

void multiply_few_fp4(const GemmCall &call, int64_t begin, int64_t end) {
  if (call.plan.panels != Panels::integers)
    return multiply_as<FloatRow>(call, begin, end);
  call.problem.a.element == Element::e2m1
      ? multiply_as<IntegerRow>(call, begin, end)
      : multiply_as<DigitRow>(call, begin, end);
}

} // namespace steelyard::STEELYARD_ISA
