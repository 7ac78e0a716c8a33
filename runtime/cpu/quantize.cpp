#include "quantize.h"

#include "bytes.h"
#include "tile_source.h"

namespace steelyard::STEELYARD_ISA {

static void quantize_tile(const Tile &tile, const CopyCall *row,
                          const CopyCall *col) {
  switch ((row ? row : col)->family) {
  case Family::tensor:
    return quantize_tensor(tile, row, col);
  case Family::block:
    return quantize_block(tile, row, col);
  case Family::mx:
    return quantize_mx(tile, row, col);
  case Family::nvfp4:
    return quantize_nvfp4(tile, row, col);
  }
}

void quantize(const QuantizeCall &call, int64_t begin, int64_t end) {
  TileSource source(call.x, call.producer, call.tiling);
  uint32_t amax = 0;
  for (int64_t index = begin; index < end; ++index) {
    const Tile tile = source.load(index, index + 1 < end ? index + 1 : -1);
    if (call.amax) {
      const uint32_t found = amax_of(tile);
      amax = found > amax ? found : amax;
    }
    if (call.shared) {
      quantize_tile(tile, call.row, call.col);
      continue;
    }
    if (call.row)
      quantize_tile(tile, call.row, nullptr);
    if (call.col)
      quantize_tile(tile, nullptr, call.col);
  }
  if (call.amax)
    atomic_max(call.amax, amax);
  end_streams();
}

} // namespace steelyard::STEELYARD_ISA
