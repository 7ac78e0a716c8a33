#include "cpu/gemm/gemm.h"

#include "cpu/gemm/few_rows.h"
#include "cpu/gemm/panels.h"
#include "cpu/gemm/store.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

template <class T>
static const T *packed_row(const GemmCall &call, int64_t slice, int64_t row) {
  const int64_t rows = call.units() * kRowUnit;
  return static_cast<const T *>(call.packed) +
         (slice * rows + row) * kRowStride;
}

template <class T, Element E>
static void pack_units(const GemmCall &call, int64_t begin, int64_t end) {
  const Packer<E> packer(call.a);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / call.slices * kRowUnit;
    const int64_t slice = task % call.slices;
    T *out = const_cast<T *>(packed_row<T>(call, slice, row));
    // The last panel of rows is whole.
    const int64_t rows = (call.rows - row + kHeight - 1) / kHeight * kHeight;
    packer.pack_rows(call.row + row, smaller(rows, kRowUnit),
                     call.k + slice * kSlice, slice_length(call, slice), out);
  }
}

#if defined(__AVX2__)
template <Element E>
static void pack_few(const GemmCall &call, int64_t begin, int64_t end) {
  const Packer<E> packer(call.a);
  for (int64_t slice = begin; slice < end; ++slice)
    for (int64_t row = 0; row < call.rows; ++row) {
      const int64_t k = slice_length(call, slice);
      float *out = few_row(call, row, slice * kSlice);
      packer.pack_rows(call.row + row, 1, call.k + slice * kSlice, k, out);
      for (int64_t q = 0; q < k; q += kRun)
        arrange_run(out + q);
    }
}
#endif

template <class T>
static void multiply_slice(const GemmCall &call, const OutputTile<T> &tile,
                           const T *columns, int64_t slice) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.first_slab && slice == 0;
  for (int64_t top = 0; top < tile.rows; top += kCachedRows) {
    const int64_t bottom = smaller(top + kCachedRows, tile.rows);
    for (int64_t j = 0; j < tile.columns; j += kWidth)
      for (int64_t i = top; i < bottom; i += kHeight)
        multiply_panel(
            packed_row<T>(call, slice, tile.row + i), columns + j * kSlice, k,
            tile.sums + i * call.tile_columns + j, call.tile_columns, first);
  }
}

template <class T, Element E>
static void multiply_tiles(const GemmCall &call, int64_t begin, int64_t end) {
  const Packer<E> packer(call.b);
  T *columns = static_cast<T *>(thread_workspace(
      WorkspaceUse::columns, call.tile_columns * kSlice * sizeof(T)));
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<T> tile = tile_of<T>(call, task);
    for (int64_t slice = 0; slice < call.slices; ++slice) {
      for (int64_t j = 0; j < tile.columns; j += kWidth)
        packer.pack_columns(call.column + tile.column + j,
                            call.k + slice * kSlice, slice_length(call, slice),
                            columns + j * kSlice);
      multiply_slice(call, tile, columns, slice);
    }
    if (call.last_slab)
      store_tile(call, tile);
  }
}

#if defined(__AVX2__)
template <Element E>
static void multiply_few(const GemmCall &call, int64_t begin, int64_t end) {
  const FewColumns<E> columns(call);
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<float> tile = tile_of<float>(call, task);
    columns.multiply(tile);
    if (call.last_slab)
      store_tile(call, tile);
  }
}
#endif

template <class T>
static void pack_as(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.a.element) {
  case Element::e4m3:
    return pack_units<T, Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return pack_units<T, Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return pack_units<T, Element::e2m1>(call, begin, end);
  }
}

template <class T>
static void multiply_as(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.b.element) {
  case Element::e4m3:
    return multiply_tiles<T, Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return multiply_tiles<T, Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return multiply_tiles<T, Element::e2m1>(call, begin, end);
  }
}

void gemm_pack(const GemmCall &call, int64_t begin, int64_t end) {
#if defined(__AVX2__)
  if (call.few)
    return call.a.element == Element::e4m3
               ? pack_few<Element::e4m3>(call, begin, end)
               : pack_few<Element::e5m2>(call, begin, end);
#endif
  call.panels == Panels::f64 ? pack_as<double>(call, begin, end)
                             : pack_as<float>(call, begin, end);
}

void gemm_multiply(const GemmCall &call, int64_t begin, int64_t end) {
#if defined(__AVX2__)
  if (call.few)
    return call.b.element == Element::e4m3
               ? multiply_few<Element::e4m3>(call, begin, end)
               : multiply_few<Element::e5m2>(call, begin, end);
#endif
  call.panels == Panels::f64 ? multiply_as<double>(call, begin, end)
                             : multiply_as<float>(call, begin, end);
}

} // namespace steelyard::STEELYARD_ISA
