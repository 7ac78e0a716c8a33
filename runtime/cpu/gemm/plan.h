// How a GEMM is multiplied: chosen once per call from the shape, the scales and
// the number of threads. No choice changes the order in which the products of
// an element are summed.
#pragma once

#include <cstdint>

#include "cpu/gemm/problem.h"

namespace steelyard {

struct KernelTable;

// The k of one panel: a multiple of every block.
inline constexpr int64_t kSlice = 256;
// Rows and columns of panels come in these units, which every kernel divides.
inline constexpr int64_t kRowUnit = 48, kColumnUnit = 32;
// Most columns of a tile: a task decodes so many columns of b at a time.
inline constexpr int64_t kMostTileColumns = 128;
// From one row of a panel to the next: they must not all start in one cache
// set.
inline constexpr int64_t kRowStride = kSlice + 16;
// The largest power of two that panels hold, before the code is multiplied: no
// sum overflows.
inline constexpr int kPanelExponent = 30;
// Up to this many rows, columns are decoded on the way to the sums; no panel of
// columns is made. Rows of FP4 codes are integers.
inline constexpr int64_t kFewRows = 16, kFewIntegerRows = 8;
// Up to this many rows of E4M3 codes are digits, see few_fp4.h.
inline constexpr int64_t kDigitRows = 2;
// Up to this many of them, block scales are multiplied into the sums, beyond
// into the decoded values.
inline constexpr int64_t kFewestRows = 4;
// Few rows, or the scales of their columns, are multiplied by 2^kFewLift: the
// columns are decoded to values as tiny as their shifted bits happen to be.
inline constexpr int kFewLift = 80;
// How far ahead columns are fetched: half a page, because the processor itself
// never looks beyond a page.
inline constexpr int64_t kBytesAhead = 2048;
// Columns, or groups of them, that a single row is multiplied by side by side:
// memory serves several streams faster than one.
inline constexpr int64_t kStreams = 4;

// What panels and accumulators hold. Integers are those of integer.h; they and
// bfloat16 have float32 accumulators.
enum class Panels : int { f32, f64, integers, bfloats };

struct GemmPlan {
  Panels panels;
  bool few_rows;                     // at most kFewRows or kFewIntegerRows
  int64_t block_rows, block_columns; // of the output, multiplied at a time
  int64_t tile_rows, tile_columns;   // of a block: one task's share
  int64_t slab_slices;               // slices of k that are decoded at a time
  // Both 64-byte aligned, and used again by each block and slab.
  void *row_panels;   // of `a`: [slice][row][kRowStride], or IntegerRows
  void *accumulators; // [tile][tile_rows][tile_columns]
};

// Chooses the panels and brings the operands of the problem into their units.
GemmPlan plan_panels(GemmProblem &problem, const KernelTable &table);

// Chooses blocks, tiles and slabs for so many threads, and gets the memory.
void plan_tiles(const GemmProblem &problem, int threads, GemmPlan &plan);

} // namespace steelyard
