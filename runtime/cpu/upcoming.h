// Bringing a tile nearer piece by piece, while the one before it is encoded:
// memory and arithmetic then take the time of one of them. Included by kernel
// sources only.
#pragma once

#include "tile.h"

namespace steelyard::STEELYARD_ISA {

// Columns that are encoded, and brought nearer, at a time.
static constexpr int64_t kPieceColumns = 256;

// Rows that are staged side by side, while as many below them are fetched: the
// processor foresees what continues along a row, none that is a page away.
static constexpr int64_t kStagedRows = 4;

struct Upcoming {
  TilePlace tile;
  const void *data;
  const char *first; // its source, rows `step` bytes apart
  int64_t step;
  Dtype dtype;
  bool narrow;         // bf16 stays as it is
  void *staging;       // null if the tile is used where it is
  int64_t row, column; // of the next piece
  int64_t piece;       // columns of one that is staged
  int32_t largest[8];  // bits of magnitudes staged so far, any lane the largest
};

static inline int64_t width_of(Dtype dtype) {
  return dtype == Dtype::f32 ? sizeof(float) : sizeof(uint16_t);
}

static inline void fetch(const char *first, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64)
    __builtin_prefetch(first + byte);
}

static inline void stage_narrow(const Upcoming &next, const char *source,
                                int64_t rows, int64_t n) {
  constexpr int64_t line = 64 / sizeof(uint16_t);
  const uint16_t *halves = reinterpret_cast<const uint16_t *>(source);
  uint16_t *out = static_cast<uint16_t *>(next.staging) +
                  next.row * next.tile.stride + next.column;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t j = 0;
    for (; j + line <= n; j += line)
      std::memcpy(out + j, halves + j, line * sizeof *out);
    for (; j < n; ++j)
      out[j] = halves[j];
    halves += next.step / int64_t{sizeof *halves};
    out += next.tile.stride;
  }
}

static inline void stage_wide(Upcoming &next, const char *source, int64_t rows,
                              int64_t n) {
  float *out = static_cast<float *>(next.staging) +
               next.row * next.tile.stride + next.column;
#if defined(__AVX2__)
  if (next.dtype == Dtype::f32 && rows == kStagedRows && n % 32 == 0)
    return copy_rows<kStagedRows>(source, next.step, n, out, next.tile.stride,
                                  next.largest);
#endif
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t found = static_cast<int32_t>(widen_row(
        source + i * next.step, next.dtype, n, out + i * next.tile.stride));
    next.largest[0] = found > next.largest[0] ? found : next.largest[0];
  }
}

// Along the rows first, for what the processor foresees.
[[gnu::noinline]] static void stage_piece(Upcoming &next) {
  const TilePlace &tile = next.tile;
  const int64_t below = tile.rows - next.row,
                rows = smaller(kStagedRows, below),
                n = smaller(next.piece, tile.columns - next.column),
                width = width_of(next.dtype);
  const char *source = next.first + next.row * next.step + next.column * width;
  for (int64_t i = rows; i < smaller(2 * rows, below); ++i)
    fetch(source + i * next.step, n * width);
  if (next.narrow)
    stage_narrow(next, source, rows, n);
  else
    stage_wide(next, source, rows, n);
  next.column += n;
  if (next.column < tile.columns)
    return;
  next.column = 0;
  next.row += rows;
}

// Down the rows first: memory serves several streams faster than one.
static inline void fetch_piece(Upcoming &next) {
  const int64_t n = smaller(kPieceColumns, next.tile.columns - next.column),
                width = width_of(next.dtype);
  fetch(next.first + next.row * next.step + next.column * width, n * width);
  if (++next.row < next.tile.rows)
    return;
  next.column += n;
  next.row = next.column < next.tile.columns ? 0 : next.tile.rows;
}

// After each piece of a tile is encoded.
static inline void bring_next(const TilePlace &tile) {
  Upcoming *next = tile.next;
  if (!next || next->row == next->tile.rows)
    return;
  if (next->staging)
    stage_piece(*next);
  else
    fetch_piece(*next);
}

// Calls `encode(first column, columns)` for the pieces of a row.
template <class F>
static inline void for_pieces(const TilePlace &tile, const F &encode) {
  for (int64_t j = 0; j < tile.columns; j += kPieceColumns) {
    encode(j, smaller(kPieceColumns, tile.columns - j));
    bring_next(tile);
  }
}

// Contiguous rows that are read once and need no widening are used where they
// are. Anything else goes through `staging`, where rows cannot evict each
// other.
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
  next.narrow = sizeof(Element) == 2;
  if (x.column_stride == 1 && width == sizeof(Element) && !tiling.staged) {
    next.data = next.first;
    next.tile.stride = x.row_stride;
    return next;
  }
  next.data = next.staging = staging.values;
  // As many as are encoded meanwhile, of narrow ones a row's worth of lines.
  next.piece = (next.narrow ? 2 : 1) * smaller(kPieceColumns, tiling.columns) /
               kStagedRows;
  next.tile.stride = tiling.columns;
  next.tile.amax_known = x.column_stride == 1 && !next.narrow;
  return next;
}

// What is left to bring of a tile that is needed now.
template <class Element>
static inline TileOf<Element> finish_tile(const Matrix &x, Upcoming &next) {
  float *staging = static_cast<float *>(next.staging);
  if (next.staging && x.column_stride == 1)
    while (next.row < next.tile.rows)
      stage_piece(next);
  else if (next.staging && x.dtype == Dtype::f32)
    gather<float>(x, next.tile, staging);
  else if (next.staging)
    gather<uint16_t>(x, next.tile, staging);
  for (int lane = 0; next.tile.amax_known && lane < 8; ++lane) {
    const uint32_t found = static_cast<uint32_t>(next.largest[lane]);
    next.tile.amax = found > next.tile.amax ? found : next.tile.amax;
  }
  return {next.tile, static_cast<const Element *>(next.data)};
}

template <class Element = float>
static inline TileOf<Element> load_tile(const Matrix &x, const Tiling &tiling,
                                        int64_t index, Staging &staging) {
  Upcoming next = begin_tile<Element>(x, tiling, index, staging);
  return finish_tile<Element>(x, next);
}

} // namespace steelyard::STEELYARD_ISA
