#include "gemm.h"

#include <cstdlib>
#include <new>

#include "gemm_pack.h"
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

// A part of the block, relative to it.
struct Part {
  int64_t row, rows, column, columns;
};

static Part tile_of(const GemmCall &call, int64_t task) {
  const int64_t row = task % call.tiles_down() * call.tile_rows;
  const int64_t column = task / call.tiles_down() * call.tile_columns;
  return {row, smaller(call.tile_rows, call.rows - row), column,
          smaller(call.tile_columns, call.columns - column)};
}

template <class T>
static void multiply_slice(const GemmCall &call, const Part &part,
                           const T *columns, int64_t slice) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.first_slab && slice == 0;
  const int64_t bottom = part.row + part.rows;
  for (int64_t top = part.row; top < bottom; top += kCachedRows)
    for (int64_t j = 0; j < part.columns; j += kWidth)
      for (int64_t i = top; i < smaller(top + kCachedRows, bottom);
           i += kHeight) {
        T *target = static_cast<T *>(call.accumulators) +
                    i * call.accumulators_stride + part.column + j;
        multiply_panel(packed_row<T>(call, slice, i), columns + j * kSlice, k,
                       target, call.accumulators_stride, first);
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
static void store_part(const GemmCall &call, const Part &part) {
  const int64_t size = call.out_dtype == Dtype::f32 ? 4 : 2;
  const bool in_float = scales_in_float(call);
  const float factor = static_cast<float>(call.a.factor * call.b.factor);
  float values[kMaxTileColumns];
  for (int64_t i = part.row; i < part.row + part.rows; ++i) {
    const T *sums = static_cast<const T *>(call.accumulators) +
                    i * call.accumulators_stride + part.column;
    const int64_t row = call.row + i, column = call.column + part.column;
    if (in_float)
      for (int64_t j = 0; j < part.columns; ++j)
        values[j] = static_cast<float>(sums[j]) * factor;
    else
      finish_row(call, row, column, part.columns, sums, values);
    char *out =
        static_cast<char *>(call.out) + (row * call.out_stride + column) * size;
    store_row(values, part.columns, call.out_dtype, out);
  }
}

// Columns of one slice of a tile, for one task at a time.
template <class T> class ColumnPanels {
public:
  explicit ColumnPanels(int64_t columns)
      : data_(static_cast<T *>(
            std::aligned_alloc(64, columns * kSlice * sizeof(T)))) {
    if (!data_)
      throw std::bad_alloc();
  }
  ~ColumnPanels() { std::free(data_); }
  ColumnPanels(const ColumnPanels &) = delete;
  T *data() { return data_; }

private:
  T *data_;
};

template <class T, Element E>
static void multiply_tiles(const GemmCall &call, int64_t begin, int64_t end) {
  const Packer<E> packer(call.b);
  ColumnPanels<T> columns(call.tile_columns);
  for (int64_t task = begin; task < end; ++task) {
    const Part part = tile_of(call, task);
    for (int64_t slice = 0; slice < call.slices; ++slice) {
      for (int64_t j = 0; j < part.columns; j += kWidth)
        packer.pack_columns(call.column + part.column + j,
                            call.k + slice * kSlice, slice_length(call, slice),
                            columns.data() + j * kSlice);
      multiply_slice<T>(call, part, columns.data(), slice);
    }
    if (call.last_slab)
      store_part<T>(call, part);
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
