// Products of panels of bfloat16, which processors multiply twice as fast as
// float32. A code times a power of two is a bfloat16, and the product of two of
// them a float32, so only sums are rounded.
#include "cpu/gemm/panels.h"
#include "cpu/gemm/store.h"
#include "cpu/gemm/workspace.h"

namespace steelyard::STEELYARD_ISA {

// Rows, or k of columns, that are decoded to float32 at a time.
static constexpr int64_t kDecodedRows = 16, kDecodedK = 64;

static uint16_t *panel_row(const GemmCall &call, int64_t slice, int64_t row) {
  const int64_t rows = row_units(call) * kRowUnit;
  return static_cast<uint16_t *>(call.plan.row_panels) +
         (slice * rows + row) * kRowStride;
}

template <Element E>
static void fill_rows(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.a);
  alignas(64) float decoded[kDecodedRows * kRowStride];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t top = task / call.at.slices * kRowUnit;
    const int64_t slice = task % call.at.slices, k = slice_length(call, slice);
    // The last panel of rows is whole.
    const int64_t bottom = smaller(
        (call.at.rows + kHeight - 1) / kHeight * kHeight, top + kRowUnit);
    for (int64_t row = top; row < bottom; row += kDecodedRows) {
      const int64_t rows = smaller(kDecodedRows, bottom - row);
      filler.fill_rows(call.at.row + row, rows, call.at.k + slice * kSlice, k,
                       decoded);
      uint16_t *out = panel_row(call, slice, row);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t q = 0; q < (k + 31) / 32 * 32; ++q)
          out[r * kRowStride + q] =
              static_cast<uint16_t>(bits_of(decoded[r * kRowStride + q]) >> 16);
    }
  }
}

// kWidth columns from `first`: [k / 2][kWidth][2].
template <Element E>
static void fill_columns(const PanelFiller<E> &filler, int64_t first, int64_t p,
                         int64_t k, uint32_t *out) {
  alignas(64) float decoded[kDecodedK * kWidth];
  for (int64_t begin = 0; begin < k; begin += kDecodedK) {
    const int64_t n = smaller(kDecodedK, k - begin);
    filler.fill_columns(first, p + begin, n, decoded);
    if (n % 2)
      std::memset(decoded + n * kWidth, 0, kWidth * sizeof *decoded);
    for (int64_t q = 0; q < n; q += 2, out += kWidth)
      for (int64_t c = 0; c < kWidth; ++c)
        out[c] = bits_of(decoded[q * kWidth + c]) >> 16 |
                 (bits_of(decoded[(q + 1) * kWidth + c]) & 0xffff0000u);
  }
}

// c = a b, or c += a b if not `first`, as in micro_kernel.h.
static void multiply_pairs(const uint16_t *a, const uint32_t *b, int64_t k,
                           float *c, int64_t c_stride, bool first) {
  constexpr int vectors = kWidth * sizeof(float) / kVectorBytes;
  for (int r = 0; r < kHeight; ++r)
    for (int v = 0; v < vectors; ++v)
      __builtin_prefetch(c + r * c_stride + v * kWidth / vectors, 1);
  // A part of the rows that come next with each pair.
  constexpr int64_t ahead = kHeight * kRowStride, step = 2 * ahead / kSlice + 1;
  WidestFloats sum[kHeight][vectors] = {};
  for (int64_t pair = 0; pair < (k + 1) / 2; ++pair) {
    __builtin_prefetch(a + ahead + pair * step);
    const WidestWords *columns =
        reinterpret_cast<const WidestWords *>(b + pair * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      int32_t values;
      std::memcpy(&values, a + r * kRowStride + 2 * pair, sizeof values);
      const WidestWords row = values - WidestWords{};
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = add_bfloat_products(sum[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    WidestFloats *target = reinterpret_cast<WidestFloats *>(c + r * c_stride);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      target[v] = first ? sum[r][v] : target[v] + sum[r][v];
  }
}

static void multiply_slice(const GemmCall &call, const OutputTile<float> &tile,
                           const uint32_t *columns, int64_t slice) {
  const int64_t k = slice_length(call, slice);
  const bool first = call.at.first_slab && slice == 0;
  for (int64_t top = 0; top < tile.rows; top += kCachedRows) {
    const int64_t bottom = smaller(top + kCachedRows, tile.rows);
    for (int64_t j = 0; j < tile.columns; j += kWidth)
      for (int64_t i = top; i < bottom; i += kHeight)
        multiply_pairs(panel_row(call, slice, tile.row + i),
                       columns + j * kSlice / 2, k,
                       tile.sums + i * call.plan.tile_columns + j,
                       call.plan.tile_columns, first);
  }
}

template <Element E>
static void multiply_tiles(const GemmCall &call, int64_t begin, int64_t end) {
  const PanelFiller<E> filler(call.problem.b);
  uint32_t *columns = static_cast<uint32_t *>(thread_workspace(
      WorkspaceUse::columns, call.plan.tile_columns * kSlice * 2));
  for (int64_t task = begin; task < end; ++task) {
    const OutputTile<float> tile = tile_of<float>(call, task);
    for (int64_t slice = 0; slice < call.at.slices; ++slice) {
      for (int64_t j = 0; j < tile.columns; j += kWidth)
        fill_columns(filler, call.at.column + tile.column + j,
                     call.at.k + slice * kSlice, slice_length(call, slice),
                     columns + j * kSlice / 2);
      multiply_slice(call, tile, columns, slice);
    }
    if (call.at.last_slab)
      store_tile(call, tile);
  }
}

void fill_bfloat_rows(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.problem.a.element) {
  case Element::e4m3:
    return fill_rows<Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return fill_rows<Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return fill_rows<Element::e2m1>(call, begin, end);
  case Element::values:
    return; // not exact in bfloat16
  }
}

void multiply_bfloats(const GemmCall &call, int64_t begin, int64_t end) {
  switch (call.problem.b.element) {
  case Element::e4m3:
    return multiply_tiles<Element::e4m3>(call, begin, end);
  case Element::e5m2:
    return multiply_tiles<Element::e5m2>(call, begin, end);
  case Element::e2m1:
    return multiply_tiles<Element::e2m1>(call, begin, end);
  case Element::values:
    return;
  }
}

} // namespace steelyard::STEELYARD_ISA
