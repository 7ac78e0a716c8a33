// Bringing a tile nearer piece by piece, while the one before it is encoded:
// memory and arithmetic then take the time of one of them. Included by kernel
// sources only.
#pragma once

#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

// Columns that are encoded, and brought nearer, at a time.
static constexpr int64_t kPieceColumns = 256;

// Rows that are fetched while one is copied: the processor foresees none that
// is a page away.
static constexpr int64_t kRowsAhead = 8;

struct Upcoming {
  TilePlace tile;
  const void *data;
  const char *first; // its source, rows `step` bytes apart
  int64_t step;
  Dtype dtype;
  float *staging;      // null if the tile is used where it is
  int64_t row, column; // of the next piece
};

static inline int64_t width_of(Dtype dtype) {
  return dtype == Dtype::f32 ? sizeof(float) : sizeof(uint16_t);
}

static inline void fetch(const char *first, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64)
    __builtin_prefetch(first + byte);
}

static inline void bring_piece(Upcoming &next) {
  TilePlace &tile = next.tile;
  const int64_t n = smaller(kPieceColumns, tile.columns - next.column),
                width = width_of(next.dtype);
  const char *source = next.first + next.row * next.step + next.column * width;
  if (!next.staging) {
    fetch(source, n * width);
  } else {
    if (next.row + kRowsAhead < tile.rows)
      fetch(source + kRowsAhead * next.step, n * width);
    const uint32_t amax =
        widen_row(source, next.dtype, n,
                  next.staging + next.row * tile.stride + next.column);
    tile.amax = amax > tile.amax ? amax : tile.amax;
  }
  // Down the rows first: memory serves several streams faster than one.
  if (++next.row == tile.rows) {
    next.row = 0;
    next.column += n;
  }
}

// After each piece of a tile is encoded.
static inline void bring_next(const TilePlace &tile) {
  if (tile.next && tile.next->column < tile.next->tile.columns)
    bring_piece(*tile.next);
}

// Calls `encode(first column, columns)` for the pieces of a row.
template <class F>
static inline void for_pieces(const TilePlace &tile, const F &encode) {
  for (int64_t j = 0; j < tile.columns; j += kPieceColumns) {
    encode(j, smaller(kPieceColumns, tile.columns - j));
    bring_next(tile);
  }
}

// Contiguous rows that need no widening are used where they are: to copy them
// takes longer than to read again what other rows evicted. Anything else goes
// through `staging`.
template <class Element>
static inline Upcoming begin_tile(const Matrix &x, const Tiling &tiling,
                                  int64_t index, Staging &staging) {
  Upcoming next{};
  next.tile = locate_tile(tiling, x.rows, x.columns, index);
  const int64_t width = width_of(x.dtype);
  const int64_t offset =
      next.tile.row * x.row_stride + next.tile.column * x.column_stride;
  next.first = static_cast<const char *>(x.data) + offset * width;
  next.step = x.row_stride * width;
  next.dtype = x.dtype;
  if (x.column_stride == 1 && width == sizeof(Element)) {
    next.data = next.first;
    next.tile.stride = x.row_stride;
    return next;
  }
  next.data = next.staging = staging.values;
  next.tile.stride = tiling.columns;
  next.tile.amax_known = x.column_stride == 1;
  return next;
}

// What is left to bring of a tile that is needed now.
template <class Element>
static inline TileOf<Element> finish_tile(const Matrix &x, Upcoming &next) {
  if (next.staging && x.column_stride == 1)
    while (next.column < next.tile.columns)
      bring_piece(next);
  else if (next.staging && x.dtype == Dtype::f32)
    gather<float>(x, next.tile, next.staging);
  else if (next.staging)
    gather<uint16_t>(x, next.tile, next.staging);
  return {next.tile, static_cast<const Element *>(next.data)};
}

template <class Element = float>
static inline TileOf<Element> load_tile(const Matrix &x, const Tiling &tiling,
                                        int64_t index, Staging &staging) {
  Upcoming next = begin_tile<Element>(x, tiling, index, staging);
  return finish_tile<Element>(x, next);
}

} // namespace steelyard::STEELYARD_ISA
