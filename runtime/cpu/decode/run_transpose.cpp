#include "cpu/decode/transpose.h"

#include <cstring>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace steelyard {
namespace {

void transpose_codes(const StoredCopy &from, const StoredCopy &to,
                     int threads) {
  const StoredShape stored = from.stored();
  const bool nibbles = from.scheme.element() == Element::e2m1;
  TransposeCall call{from.codes,     to.codes, stored.rows,
                     stored.columns, nibbles,  {}};
  call.tiling =
      make_tiling({nullptr, Dtype::f32, stored.rows, stored.columns, 1, 1},
                  TileShape::square);
  const KernelTable &table = kernels();
  parallel_for(
      call.tiling.count, tile_grain(call.tiling), threads,
      [&](int64_t begin, int64_t end) { table.transpose(call, begin, end); });
}

// What is stored of a tile is stored for each of its rows, or columns: this is
// how many, in the two dims of the scales.
struct Repeats {
  int64_t rows, columns;
};

Repeats repeats_of(const StoredCopy &copy) {
  const int64_t side = copy.scheme.block_side();
  if (copy.scheme.family() == Family::block)
    return {1, 1};
  const bool down = copy.scheme.family() == Family::mx && copy.columnwise;
  return down ? Repeats{1, side} : Repeats{side, 1};
}

template <class T>
void transpose_scales(const StoredCopy &from, const StoredCopy &to) {
  const int64_t rows = scale_rows(to.scheme, to.columnwise, to.stored());
  const int64_t columns = to.scale_row() / sizeof(T);
  const int64_t stride = from.scale_row() / sizeof(T);
  const auto *scales = reinterpret_cast<const T *>(from.scales);
  auto *out = reinterpret_cast<T *>(to.scales);
  const Repeats read = repeats_of(from), made = repeats_of(to);
  // MX codes are not transposed, so that their tiles are not, either.
  const bool turns = from.scheme.family() != Family::mx;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t tile_row = i / made.rows, tile_column = j / made.columns;
      const int64_t row = (turns ? tile_column : tile_row) * read.rows;
      const int64_t column = (turns ? tile_row : tile_column) * read.columns;
      out[i * columns + j] = scales[row * stride + column];
    }
}

} // namespace

void run_transpose(const StoredCopy &from, const StoredCopy &to, int threads) {
  const StoredShape stored = from.stored();
  const int64_t bytes = stored.rows * from.code_row();
  if (from.scheme.family() != Family::mx)
    transpose_codes(from, to, threads);
  else if (bytes > 0)
    std::memcpy(to.codes, from.codes, bytes);
  if (from.scheme.family() == Family::tensor)
    std::memcpy(to.scales, from.scales, sizeof(float));
  else if (from.scheme.family() == Family::block)
    transpose_scales<float>(from, to);
  else
    transpose_scales<uint8_t>(from, to);
  if (from.scheme.has_amax())
    *to.amax = *from.amax;
}

} // namespace steelyard
