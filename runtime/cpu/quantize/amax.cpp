#include "cpu/quantize/amax.h"

#include "cpu/quantize/hadamard.h"
#include "cpu/tiles/tile_source.h"

namespace steelyard::STEELYARD_ISA {

static uint32_t plain_amax(const AmaxCall &call, const Tile &tile) {
  if (!call.row)
    return amax_of(tile);
  uint32_t largest = 0;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const uint32_t row = amax_bits(tile.at(i), tile.columns);
    atomic_max(call.row + tile.row + i, row);
    largest = row > largest ? row : largest;
  }
  return largest;
}

static void column_amax(const AmaxCall &call, const Tile &tile) {
  alignas(64) int32_t largest[kTileSide] = {};
  for (int64_t i = 0; i < tile.rows; ++i)
    amax_columns(tile.at(i), tile.columns, largest);
  for (int64_t j = 0; j < tile.columns; ++j)
    atomic_max(call.column + tile.column + j,
               static_cast<uint32_t>(largest[j]));
}

static uint32_t transformed_amax(const Tile &tile) {
  HadamardGroup group;
  uint32_t largest = 0;
  for (int64_t i = 0; i < tile.rows; i += 16) {
    transform_rows(tile, i, group);
    for (const auto &row : group.values) {
      const uint32_t found = amax_bits(row, tile.columns);
      largest = found > largest ? found : largest;
    }
  }
  return largest;
}

// Rows of 16-bit floats need no widening: their magnitudes order as integers.
static uint32_t narrow_amax(const AmaxCall &call, const TilePlace &tile) {
  const uint16_t *x = static_cast<const uint16_t *>(call.x.data) +
                      tile.row * call.x.row_stride + tile.column;
  const auto amax_from = [&](int64_t i, int64_t rows) {
    const int16_t largest = amax_of_rows<int16_t>(
        x + i * call.x.row_stride, call.x.row_stride, rows, tile.columns);
    return bits_of(widen(static_cast<uint16_t>(largest), call.x.dtype));
  };
  if (!call.row)
    return amax_from(0, tile.rows);
  uint32_t largest = 0;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const uint32_t row = amax_from(i, 1);
    atomic_max(call.row + tile.row + i, row);
    largest = row > largest ? row : largest;
  }
  return largest;
}

void amax(const AmaxCall &call, int64_t begin, int64_t end) {
  TileSource source(call.x, call.producer, call.tiling);
  uint32_t tensor = 0, transformed = 0;
  const bool narrow = !call.producer && !call.column && !call.transformed &&
                      call.x.dtype != Dtype::f32 && call.x.column_stride == 1;
  for (int64_t index = begin; index < end; ++index) {
    if (narrow) {
      const uint32_t found = narrow_amax(
          call, locate_tile(call.tiling, call.x.rows, call.x.columns, index));
      tensor = found > tensor ? found : tensor;
      continue;
    }
    const Tile tile = source.load(index);
    if (call.tensor || call.row) {
      const uint32_t found = plain_amax(call, tile);
      tensor = found > tensor ? found : tensor;
    }
    if (call.column)
      column_amax(call, tile);
    if (call.transformed) {
      const uint32_t found = transformed_amax(tile);
      transformed = found > transformed ? found : transformed;
    }
  }
  if (call.tensor)
    atomic_max(call.tensor, tensor);
  if (call.transformed)
    atomic_max(call.transformed, transformed);
}

} // namespace steelyard::STEELYARD_ISA
