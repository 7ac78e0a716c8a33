#include "cpu/gemm/gemm.h"

#include "cpu/gemm/few_rows.h"
#include "cpu/gemm/panels.h"
#include "cpu/gemm/store.h"
#include "cpu/gemm/value_panels.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

template <class T>
static const T *panel_row(const GemmCall &call, int64_t slice, int64_t row) {
  const int64_t rows = row_units(call) * kRowUnit;
  return static_cast<const T *>(call.plan.row_panels) +
         (slice * rows + row) * kRowStride;
}

template <class T, Element E>
static void fill_units(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.a);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / call.at.slices * kRowUnit;
    const int64_t slice = task % call.at.slices;
    T *out = const_cast<T *>(panel_row<T>(call, slice, row));
    // The last panel of rows is whole.
    const int64_t rows = (call.at.rows - row + kHeight - 1) / kHeight * kHeight;
    filler.fill_rows(call.at.row + row, smaller(rows, kRowUnit),
                     call.at.k + slice * kSlice, slice_length(call, slice),
                     out);
  }
}

template <Element E>
static void fill_few_rows(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.a);
  for (int64_t slice = begin; slice < end; ++slice)
    for (int64_t row = 0; row < call.at.rows; ++row) {
      const int64_t k = slice_length(call, slice);
      float *out = few_row(call, row, slice * kSlice);
      filler.fill_rows(call.at.row + row, 1, call.at.k + slice * kSlice, k,
                       out);
      for (int64_t q = 0; q < k; q += kChunk)
        arrange_chunk(out + q);
    }
}

template <class T>
static void multiply_slice(const GemmCall &call, const OutputTile<T> &tile,
                           const T *columns, int64_t slice) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.at.first_slab && slice == 0;
  for (int64_t top = 0; top < tile.rows; top += kCachedRows) {
    const int64_t bottom = smaller(top + kCachedRows, tile.rows);
    for (int64_t j = 0; j < tile.columns; j += kWidth)
      for (int64_t i = top; i < bottom; i += kHeight)
        multiply_panel(panel_row<T>(call, slice, tile.row + i),
                       columns + j * kSlice, k,
                       tile.sums + i * call.plan.tile_columns + j,
                       call.plan.tile_columns, first);
  }
}

template <class T, Element E>
static void multiply_tiles(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.b);
  T *columns = static_cast<T *>(thread_workspace(
      WorkspaceUse::columns, call.plan.tile_columns * kSlice * sizeof(T)));
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<T> tile = tile_of<T>(call, task);
    for (int64_t slice = 0; slice < call.at.slices; ++slice) {
      for (int64_t j = 0; j < tile.columns; j += kWidth)
        filler.fill_columns(call.at.column + tile.column + j,
                            call.at.k + slice * kSlice,
                            slice_length(call, slice), columns + j * kSlice);
      multiply_slice(call, tile, columns, slice);
    }
    if (call.at.last_slab)
      store_tile(call, tile);
  }
}

template <Element E>
static void multiply_few(const GemmCall &call, int64_t begin, int64_t end) {
  const FewColumns<E> columns(call);
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<float> tile = tile_of<float>(call, task);
    columns.multiply(tile);
    if (call.at.last_slab)
      store_tile(call, tile);
  }
}

template <class T>
static void fill_as(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.problem.a.element) {
  case Element::e4m3:
    return fill_units<T, Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return fill_units<T, Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return fill_units<T, Element::e2m1>(call, begin, end);
  case Element::values:
    return fill_units<T, Element::values>(call, begin, end);
  }
}

static void fill_few(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.problem.a.element) {
  case Element::e4m3:
    return fill_few_rows<Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return fill_few_rows<Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return fill_few_rows<Element::e2m1>(call, begin, end);
  case Element::values:
    return fill_few_rows<Element::values>(call, begin, end);
  }
}

template <class T>
static void multiply_as(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.problem.b.element) {
  case Element::e4m3:
    return multiply_tiles<T, Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return multiply_tiles<T, Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return multiply_tiles<T, Element::e2m1>(call, begin, end);
  case Element::values:
    return; // only `a` may be
  }
}

void fill_row_panels(const GemmCall &call, int64_t begin, int64_t end) {
  if (kHasVectors && call.plan.few_rows)
    return fill_few(call, begin, end);
  call.plan.panels == Panels::f64 ? fill_as<double>(call, begin, end)
                                  : fill_as<float>(call, begin, end);
}

void multiply_panels(const GemmCall &call, int64_t begin, int64_t end) {
  if (kHasVectors && call.plan.few_rows)
    return call.problem.b.element == Element::e4m3
               ? multiply_few<Element::e4m3>(call, begin, end)
               : multiply_few<Element::e5m2>(call, begin, end);
  call.plan.panels == Panels::f64 ? multiply_as<double>(call, begin, end)
                                  : multiply_as<float>(call, begin, end);
}

} // namespace steelyard::STEELYARD_ISA
