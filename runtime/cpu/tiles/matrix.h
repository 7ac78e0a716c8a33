// What a kernel reads: a strided matrix of a high-precision dtype, and how it
// is cut into tiles.
#pragma once

#include <cstdint>

namespace steelyard {

enum class Dtype : int { f32, bf16, f16 };

// In the order of the enum.
inline constexpr const char *kDtypeNames[] = {"float32", "bfloat16", "float16"};

// Static, as each instruction set must have its own.
static inline int64_t item_size(Dtype dtype) {
  return dtype == Dtype::f32 ? 4 : 2;
}

// Of a tensor that kernels walk.
inline constexpr int kMostDims = 8;

// Any strides, in elements; no alignment beyond that of the dtype.
struct Matrix {
  const void *data;
  Dtype dtype;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
};

// Tiles are numbered along the rows first. A tile holds at most kTileElements,
// and its sides are multiples of every block side that it must not cut.
struct Tiling {
  int64_t rows, columns; // of one tile
  int64_t per_row, count;
};

inline constexpr int64_t kTileElements = 128 * 128;
inline constexpr int64_t kTileSide = 128;
inline constexpr int64_t kBandRows = 32, kBandColumns = 256;
inline constexpr int64_t kTileColumns = 1024;  // widest tile
inline constexpr int64_t kFlatElements = 4096; // of a flat tile: stays in L1

} // namespace steelyard
