// Where kernels get their tiles: a matrix, or a producer. Included by kernel
// sources only.
#pragma once

#include "cpu/produce/produce.h"
#include "cpu/tiles/upcoming.h"

namespace steelyard::STEELYARD_ISA {

struct ProducerScratch {
  Staging values, second;
  int64_t statistics_row = -1; // of the first of these
  RowStatistics statistics[kTileSide];
  const float *weight, *bias; // of the columns of a tile
  alignas(64) float weight_values[kTileColumns], bias_values[kTileColumns];
};

class TileSource {
public:
  TileSource(const Matrix &x, const Producer *producer, const Tiling &tiling)
      : x_(x), producer_(producer), tiling_(tiling) {}

  // Valid until the next one, which is `next` if that is not negative.
  Tile load(int64_t index, int64_t next = -1) {
    return producer_ ? produce_tile(*producer_, tiling_, index, scratch_)
                     : load_as<float>(index, next);
  }

  // The same for a matrix of bf16 in contiguous rows.
  NarrowTile load_narrow(int64_t index, int64_t next) {
    return load_as<uint16_t>(index, next);
  }

private:
  template <class Element>
  TileOf<Element> load_as(int64_t index, int64_t next) {
    TileOf<Element> tile =
        index == upcoming_index_
            ? finish_tile<Element>(x_, upcoming_)
            : load_tile<Element>(x_, tiling_, index, scratch_.values);
    upcoming_index_ = x_.column_stride == 1 ? next : -1;
    if (upcoming_index_ < 0)
      return tile;
    const bool first_is_free =
        static_cast<const void *>(tile.data) != scratch_.values.values;
    upcoming_ = begin_tile<Element>(
        x_, tiling_, next, first_is_free ? scratch_.values : scratch_.second);
    tile.next = &upcoming_;
    return tile;
  }

  const Matrix &x_;
  const Producer *const producer_;
  const Tiling &tiling_;
  int64_t upcoming_index_ = -1;
  Upcoming upcoming_{};
  ProducerScratch scratch_;
};

} // namespace steelyard::STEELYARD_ISA
