#include "gemm.h"

#include "gemm_pack.h"
#include "gemm_workspace.h"
#include "tile.h"

namespace steelyard::STEELYARD_ISA {

// Rows whose packed values stay in a core's own cache beside the columns.
static constexpr int64_t kCachedRows = 3 * kRowUnit;
static constexpr int64_t kMaxTileColumns = 128;

template <class T>
static const T *packed_row(const GemmCall &call, int64_t slice, int64_t row) {
  const int64_t rows = call.units() * kRowUnit;
  return static_cast<const T *>(call.packed) +
         (slice * rows + row) * kRowStride;
}

static int64_t slice_length(const GemmCall &call, int64_t slice) {
  return smaller(kSlice, call.a.k - call.k - slice * kSlice);
}

template <class T, Element E>
static void pack_units(const GemmCall &call, int64_t begin, int64_t end) {
  const Packer<E> packer(call.a);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / call.slices * kRowUnit;
    const int64_t slice = task % call.slices;
    T *out = const_cast<T *>(packed_row<T>(call, slice, row));
    packer.pack_rows(call.row + row, call.k + slice * kSlice,
                     slice_length(call, slice), out);
  }
}

// A tile of the block: where it is in the block, and its accumulators.
template <class T> struct OutputTile {
  int64_t row, rows, column, columns;
  T *sums; // rows are tile_columns apart
};

template <class T>
static OutputTile<T> tile_of(const GemmCall &call, int64_t task) {
  const int64_t row = task % call.tiles_down() * call.tile_rows;
  const int64_t column = task / call.tiles_down() * call.tile_columns;
  return {row, smaller(call.tile_rows, call.rows - row), column,
          smaller(call.tile_columns, call.columns - column),
          static_cast<T *>(call.accumulators) +
              task * call.tile_rows * call.tile_columns};
}

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

static void store_row(const float *values, int64_t n, Dtype dtype, void *out) {
  if (dtype == Dtype::f32) {
    std::memcpy(out, values, n * sizeof *values);
    return;
  }
  uint16_t *halves = static_cast<uint16_t *>(out);
  if (dtype == Dtype::bf16)
    for (int64_t j = 0; j < n; ++j)
      halves[j] = to_bf16(values[j]);
  else
    for (int64_t j = 0; j < n; ++j)
      halves[j] = to_f16(values[j]);
}

static void add_row(const Matrix &addend, int64_t row, int64_t column,
                    int64_t n, double *sum) {
  const int64_t first = row * addend.row_stride + column * addend.column_stride;
  if (addend.dtype == Dtype::f32) {
    const float *values = static_cast<const float *>(addend.data) + first;
    for (int64_t j = 0; j < n; ++j)
      sum[j] += values[j * addend.column_stride];
    return;
  }
  const uint16_t *halves = static_cast<const uint16_t *>(addend.data) + first;
  for (int64_t j = 0; j < n; ++j)
    sum[j] += widen(halves[j * addend.column_stride], addend.dtype);
}

// One factor for all that float32 holds well, and nothing to add.
static bool scales_in_float(const GemmCall &call) {
  const double factor = call.a.factor * call.b.factor;
  const double magnitude = factor < 0 ? -factor : factor;
  return !call.wide && !call.a.factors && !call.b.factors &&
         !call.addends[0].data && !call.addends[1].data &&
         magnitude >= 0x1p-126 && magnitude <= kFloatMax;
}

// factors * sums + addends, in float64 so that only the result overflows.
template <class T>
static void finish_row(const GemmCall &call, int64_t row, int64_t column,
                       int64_t n, const T *sums, float *out) {
  const double row_factor =
      call.a.factors ? call.a.factors[row] : call.a.factor;
  const double factor = row_factor * call.b.factor;
  double values[kMaxTileColumns];
  for (int64_t j = 0; j < n; ++j)
    values[j] = sums[j] * factor;
  if (call.b.factors)
    for (int64_t j = 0; j < n; ++j)
      values[j] = sums[j] * (row_factor * call.b.factors[column + j]);
  for (const Matrix &addend : call.addends)
    if (addend.data)
      add_row(addend, row, column, n, values);
  for (int64_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(values[j]);
}

template <class T>
static void store_tile(const GemmCall &call, const OutputTile<T> &tile) {
  const int64_t size = call.out_dtype == Dtype::f32 ? 4 : 2;
  const int64_t column = call.column + tile.column;
  const bool in_float = scales_in_float(call);
  const float factor = static_cast<float>(call.a.factor * call.b.factor);
  float values[kMaxTileColumns];
  for (int64_t i = 0; i < tile.rows; ++i) {
    const T *sums = tile.sums + i * call.tile_columns;
    const int64_t row = call.row + tile.row + i;
    if (in_float)
      for (int64_t j = 0; j < tile.columns; ++j)
        values[j] = static_cast<float>(sums[j]) * factor;
    else
      finish_row(call, row, column, tile.columns, sums, values);
    char *out =
        static_cast<char *>(call.out) + (row * call.out_stride + column) * size;
    store_row(values, tile.columns, call.out_dtype, out);
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
  call.wide ? pack_as<double>(call, begin, end)
            : pack_as<float>(call, begin, end);
}

void gemm_multiply(const GemmCall &call, int64_t begin, int64_t end) {
  call.wide ? multiply_as<double>(call, begin, end)
            : multiply_as<float>(call, begin, end);
}

} // namespace steelyard::STEELYARD_ISA
