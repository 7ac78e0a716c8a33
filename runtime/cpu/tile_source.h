// Where kernels get their tiles: a matrix, or a producer. Included by kernel
// sources only.
#pragma once

#include "produce.h"
#include "tile.h"

namespace steelyard::STEELYARD_ISA {

struct ProducerScratch {
  Staging values, second;
  int64_t statistics_row = -1; // of the first of these
  RowStatistics statistics[kTileSide];
  alignas(64) float weight[kTileColumns], bias[kTileColumns];
};

class TileSource {
public:
  TileSource(const Matrix &x, const Producer *producer, const Tiling &tiling)
      : x_(x), producer_(producer), tiling_(tiling) {}

  // Valid until the next one.
  Tile load(int64_t index) {
    return producer_ ? produce_tile(*producer_, tiling_, index, scratch_)
                     : load_tile(x_, tiling_, index, scratch_.values);
  }

private:
  const Matrix &x_;
  const Producer *const producer_;
  const Tiling &tiling_;
  ProducerScratch scratch_;
};

} // namespace steelyard::STEELYARD_ISA
