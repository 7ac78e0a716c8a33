// How a matrix is cut into tiles, and how many tiles make a task: from the
// shape alone.
#pragma once

#include <algorithm>

#include "cpu/tiles/matrix.h"

namespace steelyard {

// Square tiles serve transposed reads and writes, bands the blocks of 32 rows
// that stay in place; flat tiles read long rows once.
enum class TileShape { flat, band, square };

inline Tiling make_tiling(const Matrix &x, TileShape shape) {
  Tiling tiling;
  if (shape == TileShape::square || x.column_stride != 1) {
    tiling.rows = tiling.columns = kTileSide;
  } else if (shape == TileShape::band) {
    tiling.rows = kBandRows;
    tiling.columns = kBandColumns;
  } else {
    tiling.columns =
        std::clamp((x.columns + 127) / 128 * 128, kTileSide, kTileColumns);
    tiling.rows = kFlatElements / tiling.columns;
  }
  tiling.per_row = (x.columns + tiling.columns - 1) / tiling.columns;
  tiling.count = tiling.per_row * ((x.rows + tiling.rows - 1) / tiling.rows);
  return tiling;
}

// Tiles per task: at least 64 Ki elements, below which a thread does not pay,
// more of a large matrix, as the first tile of a task comes while nothing else
// is done, and whole rows where a tile needs them.
inline int64_t tile_grain(const Tiling &tiling, bool whole_rows = false) {
  const int64_t least =
      std::max<int64_t>(1, 65536 / (tiling.rows * tiling.columns));
  const int64_t grain = std::clamp(tiling.count / 64, least, 4 * least);
  const int64_t unit = whole_rows ? std::max<int64_t>(1, tiling.per_row) : 1;
  return (grain + unit - 1) / unit * unit;
}

} // namespace steelyard
