#include "produce.h"

#include "tile_source.h"

namespace steelyard::STEELYARD_ISA {

void produce(const ProduceCall &call, int64_t begin, int64_t end) {
  TileSource source(call.x, call.producer, call.tiling);
  const int64_t size = call.x.dtype == Dtype::f32 ? 4 : 2;
  for (int64_t index = begin; index < end; ++index) {
    const Tile tile = source.load(index);
    for (int64_t i = 0; i < tile.rows; ++i)
      store_row(tile.at(i), tile.columns, call.x.dtype,
                static_cast<char *>(call.out) +
                    ((tile.row + i) * call.x.columns + tile.column) * size);
  }
}

} // namespace steelyard::STEELYARD_ISA
