#include "cpu/gemm/integer.h"

#include "cpu/gemm/store.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

static IntegerRow *panel_row(const GemmCall &call, int64_t slice, int64_t row) {
  return static_cast<IntegerRow *>(call.plan.row_panels) +
         slice * row_units(call) * kRowUnit + row;
}

static int64_t blocks_of(int64_t k) {
  return (k + kUnitBlock - 1) / kUnitBlock;
}

// The codes of row `i` from `p`, with zeros after them; there may be none.
static void copy_codes(const GemmOperand &x, int64_t i, int64_t p, int64_t k,
                       uint8_t *out) {
  const int64_t bytes = (k + 1) / 2;
  if (bytes > 0)
    std::memcpy(out, x.codes + i * x.codes_stride + p / 2, bytes);
  std::memset(out + bytes, 0, kSlice / 2 - bytes);
  if (k % 2)
    out[bytes - 1] &= 15;
}

static const uint8_t *scales_of(const GemmOperand &x, int64_t i, int64_t p) {
  return static_cast<const uint8_t *>(x.scales) + i * x.outer_stride +
         p / kUnitBlock;
}

static void fill_row(const GemmOperand &x, int64_t i, int64_t p, int64_t k,
                     bool offset, IntegerRow &row) {
  alignas(32) uint8_t codes[kSlice / 2];
  copy_codes(x, i, p, k, codes);
  const Bytes16 table = doubled_codes(offset ? kCodeOffset : 0);
  for (int64_t q = 0; q < k; q += 32) {
    const Bytes16 pairs = load<Bytes16>(codes + q / 2);
    const Words4 even = as<Words4>(look_up(table, pairs & uint8_t{15})),
                 odd = as<Words4>(look_up(table, pairs >> 4));
    store(row.codes + q, zip_low(even, odd));
    store(row.codes + q + 16, zip_high(even, odd));
  }
  alignas(16) uint8_t bytes[kSliceBlocks] = {};
  if (k > 0)
    std::memcpy(bytes, scales_of(x, i, p), blocks_of(k));
  for (int64_t b = 0; b < kSliceBlocks; b += 8)
    store(row.scales + b, half_scales(bytes + b));
}

static void set_offsets(int64_t k, IntegerRow &row) {
  for (int64_t b = 0; b < blocks_of(k); ++b) {
    int32_t sum = 0;
    for (int64_t j = 0; j < kUnitBlock; ++j)
      sum += static_cast<int8_t>(row.codes[kUnitBlock * b + j]);
    row.offsets[b] = static_cast<float>(-kCodeOffset * sum) * row.scales[b];
  }
}

void fill_integer_rows(const GemmCall &call, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    const int64_t slice = task % call.at.slices, k = slice_length(call, slice);
    const int64_t top = task / call.at.slices * kRowUnit;
    const int64_t bottom = smaller(top + kRowUnit, call.at.rows);
    for (int64_t row = top; row < bottom; ++row) {
      IntegerRow &integers = *panel_row(call, slice, row);
      fill_row(call.problem.a, call.at.row + row, call.at.k + slice * kSlice, k,
               !call.plan.few_rows, integers);
      if (call.plan.few_rows)
        set_offsets(k, integers);
    }
  }
}

// out[i] = the i-th four bytes of each of 8 rows.
static void transpose_quads(const uint8_t (*rows)[kSlice / 2], int64_t byte,
                            uint8_t *out) {
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

static GroupUnits stage_units(const GemmOperand &x, int64_t first, int64_t p,
                              int64_t k, StagedUnits &staged) {
  alignas(64) uint8_t rows[kGroupColumns][kSlice / 2];
  for (int64_t c = 0; c < kGroupColumns; ++c) {
    if (first + c < x.outer)
      copy_codes(x, first + c, p, k, rows[c]);
    else
      std::memset(rows[c], 0, sizeof rows[c]);
    for (int64_t b = 0; b < blocks_of(k); ++b)
      staged.scales[b][c] =
          first + c < x.outer ? scales_of(x, first + c, p)[b] : 0;
  }
  for (int64_t q = 0; q < k; q += 64)
    transpose_quads(rows, q / 2, staged.codes[q / kUnitBlock]);
  return {staged.codes[0], staged.scales[0]};
}

// The units of the 8 columns from `first`, k from `p`.
static GroupUnits packed_units(const GemmOperand &x, int64_t first, int64_t p) {
  const int64_t unit = first / kGroupColumns * blocks_of(x.k) + p / kUnitBlock;
  return {x.codes + unit * kUnitBytes,
          static_cast<const uint8_t *>(x.scales) + unit * kGroupColumns};
}

static GroupUnits units_of(const GemmOperand &x, int64_t first, int64_t p,
                           int64_t k, StagedUnits &staged) {
  return x.is_packed_weight ? packed_units(x, first, p)
                            : stage_units(x, first, p, k, staged);
}

// kColumnUnit columns from `first`: units [block][kPanelGroups].
static void fill_columns(const GemmOperand &x, int64_t first, int64_t p,
                         int64_t k, IntegerUnit *out) {
  StagedUnits staged;
  for (int64_t g = 0; g < kPanelGroups; ++g) {
    const int64_t column = first + g * kGroupColumns;
    if (column >= x.outer) {
      for (int64_t b = 0; b < blocks_of(k); ++b)
        std::memset(&out[b * kPanelGroups + g], 0, sizeof *out);
      continue;
    }
    const GroupUnits units = units_of(x, column, p, k, staged);
    for (int64_t b = 0; b < blocks_of(k); ++b) {
      // The next slice comes after all rows: too late for the processor to see
      // a pattern.
      __builtin_prefetch(units.codes + (b + kSliceBlocks) * kUnitBytes, 0, 2);
      store_unit(units.codes + b * kUnitBytes, units.scales + b * kGroupColumns,
                 out[b * kPanelGroups + g]);
    }
  }
}

static void multiply_slice(const GemmCall &call, const OutputTile<float> &tile,
                           int64_t slice, IntegerUnit *columns) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.at.first_slab && slice == 0;
  for (int64_t j = 0; j < tile.columns; j += kColumnUnit) {
    fill_columns(call.problem.b, call.at.column + tile.column + j,
                 call.at.k + slice * kSlice, k, columns);
    for (int64_t i = 0; i < tile.rows; ++i)
      multiply_integer_row(*panel_row(call, slice, tile.row + i), columns,
                           blocks_of(k),
                           tile.sums + i * call.plan.tile_columns + j, first);
  }
}

// Rows that share the expanding of a unit.
static constexpr int64_t kRowsAtOnce = 4;

static void multiply_rows(const IntegerRow *rows, int64_t count,
                          const GroupUnits &units, int64_t blocks, float *sums,
                          int64_t stride, bool first) {
  const GroupUnits groups[] = {units};
  switch (count) {
  case 1:
    return multiply_integer_groups<1>(rows, groups, blocks, sums, stride, 0,
                                      first);
  case 2:
    return multiply_integer_groups<2>(rows, groups, blocks, sums, stride, 0,
                                      first);
  case 3:
    return multiply_integer_groups<3>(rows, groups, blocks, sums, stride, 0,
                                      first);
  default:
    return multiply_integer_groups<4>(rows, groups, blocks, sums, stride, 0,
                                      first);
  }
}

// One slice of the group of columns from `j` in the tile.
static void multiply_group(const GemmCall &call, const OutputTile<float> &tile,
                           int64_t j, int64_t slice, StagedUnits &staged) {
  const int64_t k = slice_length(call, slice);
  const GroupUnits units =
      units_of(call.problem.b, call.at.column + tile.column + j,
               call.at.k + slice * kSlice, k, staged);
  const int64_t parts = (tile.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t row = tile.rows * part / parts,
                  end = tile.rows * (part + 1) / parts;
    multiply_rows(panel_row(call, slice, tile.row + row), end - row, units,
                  blocks_of(k), tile.sums + row * call.plan.tile_columns + j,
                  call.plan.tile_columns, call.at.first_slab && slice == 0);
  }
}

// One slice of kStreams groups from `j` in the tile, `apart` columns from each
// other.
static void multiply_streams(const GemmCall &call,
                             const OutputTile<float> &tile, int64_t j,
                             int64_t apart, int64_t slice) {
  const int64_t k = slice_length(call, slice);
  GroupUnits units[kStreams];
  for (int64_t g = 0; g < kStreams; ++g)
    units[g] = packed_units(call.problem.b,
                            call.at.column + tile.column + j + g * apart,
                            call.at.k + slice * kSlice);
  multiply_integer_groups<1>(
      panel_row(call, slice, tile.row), units, blocks_of(k), tile.sums + j,
      call.plan.tile_columns, apart, call.at.first_slab && slice == 0);
}

// Columns in the order of memory, or of several streams through it, which is
// then read at its full speed.
static void multiply_few(const GemmCall &call, const OutputTile<float> &tile) {
  StagedUnits staged;
  const bool streams = call.at.rows == 1 && call.problem.b.is_packed_weight;
  const int64_t apart =
      streams ? tile.columns / (kStreams * kGroupColumns) * kGroupColumns : 0;
  for (int64_t j = 0; j < apart; j += kGroupColumns)
    for (int64_t slice = 0; slice < call.at.slices; ++slice)
      multiply_streams(call, tile, j, apart, slice);
  for (int64_t j = kStreams * apart; j < tile.columns; j += kGroupColumns)
    for (int64_t slice = 0; slice < call.at.slices; ++slice)
      multiply_group(call, tile, j, slice, staged);
}

void multiply_integers(const GemmCall &call, int64_t begin, int64_t end) {
  IntegerUnit *columns = static_cast<IntegerUnit *>(
      thread_workspace(WorkspaceUse::columns,
                       kPanelGroups * kSliceBlocks * sizeof(IntegerUnit)));
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<float> tile = tile_of<float>(call, task);
    if (call.plan.few_rows)
      multiply_few(call, tile);
    for (int64_t slice = 0; !call.plan.few_rows && slice < call.at.slices;
         ++slice)
      multiply_slice(call, tile, slice, columns);
    if (call.at.last_slab)
      store_tile(call, tile);
  }
}

} // namespace steelyard::STEELYARD_ISA
