// FP8 columns times few float32 rows: memory is read once and nothing is
// written but the sums. Included by kernel sources only.
//
// The columns are decoded to tiny values, so the rows or the scales are lifted
// by kFewLift, and the factors at the end take both back. A column that holds a
// code which is NaN or infinite is summed again, one code at a time.
//
// A group of columns takes the rows in parts whose sums fit the registers, and
// a part in strips of k that stay in the first cache while the columns pass. A
// single row takes columns side by side that are far apart, each the next of a
// stream through memory.
#pragma once

#include "cpu/gemm/few_rows_sums.h"
#include "cpu/gemm/tiles.h"

namespace steelyard::STEELYARD_ISA {

// k of a strip, so that few rows of it, or a part of them, fill half the cache.
static inline int64_t strip_length(const GemmCall &call) {
  return call.at.rows == 1   ? 4096
         : call.at.rows == 2 ? 2048
         : call.at.rows <= 4 ? 1024
                             : 512;
}

// Few rows are packed as [strip][row][k of a strip], arranged: what a strip
// needs must not lie in one cache set. `q` is a k of the slab.
static inline float *few_row(const GemmCall &call, int64_t row, int64_t q) {
  const int64_t strip = strip_length(call);
  return static_cast<float *>(call.plan.row_panels) +
         (q / strip * call.at.rows + row) * strip + q % strip;
}

template <Element E> class FewColumns {
public:
  explicit FewColumns(const GemmCall &call)
      : call_(call), x_(call.problem.b),
        length_(smaller(call.at.slices * kSlice, x_.k - call.at.k)) {
    if (x_.scale_type != ScaleType::e8m0)
      return;
    for (int byte = 0; byte < 256; ++byte)
      table_[byte] = panel_scale(decode_e8m0(byte), x_.unit);
  }

  // The sums of every column of a tile of at most kFewRows rows.
  void multiply(const OutputTile<float> &tile) const {
    const bool streams = call_.at.rows == 1;
    const int64_t apart = streams ? tile.columns / kStreams : 0;
    const int64_t most = streams ? kStreams : group_columns();
    for (int64_t j = 0; j < apart; ++j)
      multiply_group(tile, {j, kStreams, apart});
    for (int64_t j = apart * kStreams; j < tile.columns; j += most)
      multiply_group(tile, {j, smaller(most, tile.columns - j), 1});
  }

private:
  static constexpr int64_t kRowsAtOnce = 8;
  static constexpr int64_t kMostGroup = 16, kLeastGroup = 4;
  // Codes of a group, which several parts of the rows read.
  static constexpr int64_t kGroupCodes = 1 << 16;

  struct Part {
    int64_t row, rows;
  };
  // Columns of a tile.
  struct Group {
    int64_t first, count, step;
  };

  int64_t parts() const {
    return (call_.at.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  }
  Part part(int64_t index) const {
    const int64_t row = call_.at.rows * index / parts();
    return {row, call_.at.rows * (index + 1) / parts() - row};
  }
  int64_t group_columns() const {
    const bool fit = kMostGroup * length_ <= kGroupCodes;
    return parts() > 1 && fit ? kMostGroup : kLeastGroup;
  }

  void multiply_group(const OutputTile<float> &tile, Group group) const {
    ColumnSums sums[kMostGroup];
    for (int64_t c = 0; c < group.count; ++c)
      clear(sums[c]);
    const Group placed{call_.at.column + tile.column + group.first, group.count,
                       group.step};
    for (int64_t index = 0; index < parts(); ++index)
      add_part(part(index), placed, sums);
    for (int64_t c = 0; c < group.count; c += 4)
      store_sums(sums + c, smaller(4, group.count - c), tile,
                 group.first + c * group.step, group.step);
  }

  // Only what is used: there may be more rows than codes.
  void clear(ColumnSums &sums) const {
    for (int64_t r = 0; r < call_.at.rows; ++r)
      sums.total[r] = Floats8{};
    sums.largest = Bytes32{};
    sums.infinite_scale = false;
  }

  void add_part(Part part, Group group, ColumnSums *sums) const {
    const int64_t strip = strip_length(call_);
    for (int64_t q = 0; q < length_; q += strip)
      add_strip(part, group, q, smaller(strip, length_ - q), sums);
  }

  void add_strip(Part part, Group group, int64_t q, int64_t k,
                 ColumnSums *sums) const {
    const int64_t whole = k / kChunk * kChunk, stride = strip_length(call_);
    const uint8_t *codes =
        x_.codes + group.first * x_.codes_stride + call_.at.k + q;
    const int64_t step = group.step * x_.codes_stride;
    const float *rows = few_row(call_, part.row, q);
    sum(part, group, call_.at.k + q,
        {codes, step, group.count, whole / kChunk, ahead_of(q, k), rows,
         stride},
        sums);
    if (whole == k)
      return;
    alignas(32) uint8_t rest[kMostGroup][kChunk] = {};
    for (int64_t c = 0; c < group.count; ++c)
      std::memcpy(rest[c], codes + c * step + whole, k - whole);
    sum(part, group, call_.at.k + q + whole,
        {rest[0], kChunk, group.count, 1, 0, rows + whole, stride}, sums);
  }

  // From codes of a strip to those that are read next: of the same columns, or
  // of the next group.
  int64_t ahead_of(int64_t q, int64_t k) const {
    if (call_.at.rows == 1 || k == length_)
      return kBytesAhead;
    return q + k == length_ ? group_columns() * x_.codes_stride - q : k;
  }

  void sum(Part part, Group group, int64_t k, const StripCodes &strip,
           ColumnSums *sums) const {
    const int64_t column = group.first, step = group.step;
    switch (x_.scale_type) {
    case ScaleType::f32:
      if (call_.at.rows > kFewestRows)
        return sum_rows(part, strip,
                        FloatScales<Scaling::values>{x_, column, k, step},
                        sums);
      return sum_few(part, strip,
                     FloatScales<Scaling::sums>{x_, column, k, step}, sums);
    case ScaleType::e8m0:
      if (call_.at.rows > kFewestRows)
        return sum_rows(
            part, strip,
            ByteScales<Scaling::values>{x_, table_, column, k, step}, sums);
      return sum_few(part, strip,
                     ByteScales<Scaling::sums>{x_, table_, column, k, step},
                     sums);
    default:
      return sum_few(part, strip, NoScales{}, sums);
    }
  }

  template <class Scales>
  void sum_few(Part part, const StripCodes &strip, const Scales &scales,
               ColumnSums *sums) const {
    if (call_.at.rows == 1)
      sum_streams<E>(strip, scales, sums);
    else
      sum_rows(part, strip, scales, sums);
  }

  // At least two: a single row takes streams.
  template <int Rows = 2, class Scales>
  static void sum_rows(Part part, const StripCodes &strip, const Scales &scales,
                       ColumnSums *sums) {
    constexpr bool is_used =
        Scales::kScaling == Scaling::none ||
        (Scales::kScaling == Scaling::sums ? Rows <= kFewestRows
                                           : Rows >= kFewestRows);
    if constexpr (Rows < kRowsAtOnce)
      if (part.rows > Rows)
        return sum_rows<Rows + 1>(part, strip, scales, sums);
    if constexpr (is_used)
      sum_strip<E, Rows>(strip, scales, part.row, sums);
  }

  // At most four columns from `j` in the tile, `step` apart.
  void store_sums(const ColumnSums *sums, int64_t columns,
                  const OutputTile<float> &tile, int64_t j,
                  int64_t step) const {
    const int64_t column = call_.at.column + tile.column + j;
    bool careful[4] = {};
    for (int64_t c = 0; c < columns; ++c)
      careful[c] = sums[c].infinite_scale || (is_special(sums[c].largest) &&
                                              holds_special(column + c * step));
    for (int64_t r = 0; r < tile.rows; ++r) {
      Floats8 totals[4];
      for (int64_t c = 0; c < 4; ++c)
        totals[c] = c < columns ? sums[c].total[r] : Floats8{};
      const Floats4 four = sums_of_4(totals);
      float *target = tile.sums + r * call_.plan.tile_columns + j;
      for (int64_t c = 0; c < columns; ++c) {
        const float sum =
            careful[c] ? sum_carefully(column + c * step, r) : four[c];
        float &out = target[c * step];
        out = call_.at.first_slab ? sum : out + sum;
      }
    }
  }

  static bool is_special(Bytes32 largest) {
    constexpr uint8_t least = E == Element::e4m3 ? 0x7f << 1 : 0x7c << 1;
    return !is_zero(largest >= least);
  }

  // Columns side by side share their largest code.
  bool holds_special(int64_t column) const {
    Bytes32 largest = Bytes32{};
    alignas(32) uint8_t chunk[kChunk];
    const uint8_t *codes = x_.codes + column * x_.codes_stride + call_.at.k;
    for (int64_t q = 0; q < length_; q += kChunk) {
      std::memset(chunk, 0, kChunk);
      std::memcpy(chunk, codes + q, smaller(kChunk, length_ - q));
      const Bytes32 bytes = load<Bytes32>(chunk);
      largest = maximum(largest, bytes + bytes);
    }
    return is_special(largest);
  }

  float sum_carefully(int64_t column, int64_t row) const {
    constexpr double placed = E == Element::e4m3 ? 0x1p-120 : 0x1p-112;
    double sum = 0.0;
    for (int64_t q = 0; q < length_; ++q)
      sum += *few_row(call_, row, arranged(q)) * placed *
             code_at(x_, column, call_.at.k + q) *
             scale_at(x_, scale_index(x_, column, call_.at.k + q)) * x_.unit;
    return static_cast<float>(sum);
  }

  const GemmCall &call_;
  const GemmOperand &x_;
  const int64_t length_; // k of the slab
  float table_[256];     // scales of E8M0 bytes
};

} // namespace steelyard::STEELYARD_ISA
