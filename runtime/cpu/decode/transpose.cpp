#include "cpu/decode/transpose.h"

#include "cpu/formats/bytes.h"

namespace steelyard::STEELYARD_ISA {

struct alignas(64) Scratch {
  uint8_t codes[kTileSide][kTileSide];
  uint8_t pairs[kTileSide / 2][kTileSide];
};

static void transpose_nibbles(const TransposeCall &call, int64_t row,
                              int64_t column, int64_t rows, int64_t columns,
                              Scratch &scratch) {
  const int64_t in_stride = (call.columns + 1) / 2,
                out_stride = (call.rows + 1) / 2;
  for (int64_t i = 0; i < rows; ++i)
    unpack_row(call.in + (row + i) * in_stride + column / 2, columns,
               scratch.codes[i]);
  if (rows % 2)
    std::memset(scratch.codes[rows], 0, columns);
  for (int64_t i = 0; i < rows; i += 2)
    for (int64_t j = 0; j < columns; ++j)
      scratch.pairs[i / 2][j] = static_cast<uint8_t>(
          scratch.codes[i][j] | scratch.codes[i + 1][j] << 4);
  transpose_bytes(scratch.pairs[0], kTileSide, (rows + 1) / 2, columns,
                  call.out + column * out_stride + row / 2, out_stride);
}

void transpose(const TransposeCall &call, int64_t begin, int64_t end) {
  Scratch scratch;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t row = index / call.tiling.per_row * call.tiling.rows;
    const int64_t column = index % call.tiling.per_row * call.tiling.columns;
    const int64_t rows = smaller(call.tiling.rows, call.rows - row);
    const int64_t columns = smaller(call.tiling.columns, call.columns - column);
    if (call.nibbles)
      transpose_nibbles(call, row, column, rows, columns, scratch);
    else
      transpose_bytes(call.in + row * call.columns + column, call.columns, rows,
                      columns, call.out + column * call.rows + row, call.rows);
  }
}

} // namespace steelyard::STEELYARD_ISA
