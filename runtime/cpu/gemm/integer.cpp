#include "cpu/gemm/integer.h"

#include "cpu/gemm/store.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

static IntegerRow *panel_row(const GemmCall &call, int64_t slice, int64_t row) {
  return static_cast<IntegerRow *>(call.plan.row_panels) +
         slice * row_units(call) * kRowUnit + row;
}

void fill_integer_rows(const GemmCall &call, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    const int64_t slice = task % call.at.slices, k = slice_length(call, slice);
    const int64_t top = task / call.at.slices * kRowUnit;
    const int64_t bottom = smaller(top + kRowUnit, call.at.rows);
    for (int64_t row = top; row < bottom; ++row)
      fill_integer_row(call.problem.a, call.at.row + row,
                       call.at.k + slice * kSlice, k, kCodeOffset,
                       *panel_row(call, slice, row));
  }
}

// kColumnUnit columns from `first`: units [unit][kPanelGroups].
template <class Scales>
static void fill_columns(const GemmOperand &x, const Scales &scales,
                         int64_t first, int64_t p, int64_t k,
                         IntegerUnit *out) {
  StagedUnits staged;
  for (int64_t g = 0; g < kPanelGroups; ++g) {
    const int64_t column = first + g * kGroupColumns;
    if (column >= x.outer) {
      for (int64_t b = 0; b < units_in(k); ++b)
        std::memset(&out[b * kPanelGroups + g], 0, sizeof *out);
      continue;
    }
    const GroupUnits units = units_of(x, column, p, k, staged);
    for (int64_t b = 0; b < units_in(k); ++b) {
      // The next slice comes after all rows: too late for the processor to see
      // a pattern.
      __builtin_prefetch(units.codes + (b + kSliceUnits) * kUnitBytes, 0, 2);
      store_unit(units.codes + b * kUnitBytes,
                 scales.at(units.scales + b / Scales::kUnits * kGroupColumns),
                 out[b * kPanelGroups + g]);
    }
  }
}

static void multiply_slice(const GemmCall &call, const OutputTile<float> &tile,
                           int64_t slice, IntegerUnit *columns) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.at.first_slab && slice == 0;
  for (int64_t j = 0; j < tile.columns; j += kColumnUnit) {
    with_scales(call.problem.b, [&](const auto &scales) {
      fill_columns(call.problem.b, scales, call.at.column + tile.column + j,
                   call.at.k + slice * kSlice, k, columns);
    });
    for (int64_t i = 0; i < tile.rows; ++i)
      multiply_integer_row(*panel_row(call, slice, tile.row + i), columns,
                           units_in(k),
                           tile.sums + i * call.plan.tile_columns + j, first);
  }
}

void multiply_integers(const GemmCall &call, int64_t begin, int64_t end) {
  IntegerUnit *columns = static_cast<IntegerUnit *>(thread_workspace(
      WorkspaceUse::columns, kPanelGroups * kSliceUnits * sizeof(IntegerUnit)));
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<float> tile = tile_of<float>(call, task);
    for (int64_t slice = 0; slice < call.at.slices; ++slice)
      multiply_slice(call, tile, slice, columns);
    if (call.at.last_slab)
      store_tile(call, tile);
  }
}

} // namespace steelyard::STEELYARD_ISA
