#include "cpu/quantize/quantize.h"

#include "cpu/formats/bytes.h"
#include "cpu/tiles/tile_source.h"

namespace steelyard::STEELYARD_ISA {

template <class T>
static void quantize_tile(const TileOf<T> &tile, const CopyCall *row,
                          const CopyCall *col) {
  switch ((row ? row : col)->family) {
  case Family::tensor:
    return quantize_tensor(tile, row, col);
  case Family::row:
    return quantize_row(tile, row, col);
  case Family::block:
    return quantize_block(tile, row, col);
  case Family::mx:
    return quantize_mx(tile, row, col);
  case Family::mxfp4:
    return quantize_fp4_wide(tile, row, col);
  case Family::nvfp4:
    return (row ? row : col)->wide ? quantize_fp4_wide(tile, row, col)
                                   : quantize_nvfp4(tile, row, col);
  }
}

template <class T>
static void quantize_copies(const QuantizeCall &call, const TileOf<T> &tile,
                            uint32_t &amax) {
  if (call.amax) {
    const uint32_t found = amax_of(tile);
    amax = found > amax ? found : amax;
  }
  if (call.shared)
    return quantize_tile(tile, call.row, call.col);
  if (call.row)
    quantize_tile(tile, call.row, nullptr);
  if (call.col)
    quantize_tile(tile, nullptr, call.col);
}

// Rounds a value by itself and its scale alone.
static bool is_plain(const CopyCall *copy) {
  return !copy || (!copy->rht && !copy->stochastic && !copy->row_scaled &&
                   copy->four_over_six == FourOverSix::none);
}

void quantize(const QuantizeCall &call, int64_t begin, int64_t end) {
  TileSource source(call.x, call.producer, call.tiling);
  const bool narrow = call.x.dtype == Dtype::bf16 &&
                      call.x.column_stride == 1 && !call.producer &&
                      is_plain(call.row) && is_plain(call.col);
  uint32_t amax = 0;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t next = index + 1 < end ? index + 1 : -1;
    if (narrow)
      quantize_copies(call, source.load_narrow(index, next), amax);
    else
      quantize_copies(call, source.load(index, next), amax);
  }
  if (call.amax)
    atomic_max(call.amax, amax);
  end_streams();
}

} // namespace steelyard::STEELYARD_ISA
