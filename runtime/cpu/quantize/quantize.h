// Quantizing a matrix into a rowwise copy, a columnwise copy or both, in one
// pass over its tiles.
//
// Stored arrays are contiguous and need no alignment: codes (rows, columns) of
// bytes, FP4 two codes per byte along a row; rows and columns are those of x
// for a rowwise copy and for MX, those of its transpose for other columnwise
// copies. Scales are compact. A copy with the Hadamard transform stores its
// reduction rounded up to 16.
#pragma once

#include "cpu/formats/scheme.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

struct Producer;

struct CopyCall {
  Family family;
  Element element;
  Rule rule;
  FourOverSix four_over_six;
  bool columnwise, tiled, power_of_two, rht, stochastic, row_scaled, wide,
      is_static, is_divisor;
  float epsilon;

  uint8_t *codes;
  int64_t codes_stride; // bytes per stored row
  uint8_t *scales;
  int64_t scales_stride; // bytes per row of scales
  float *amax; // tensor, nvfp4: one, or one per stored row; of a static nvfp4
               // copy its second level

  float scale;              // tensor: what values are multiplied by
  const float *row_factors; // row: the same, one per stored row
  float limit;   // block: the scale where element_max / amax overflows
  bool bounded;  // tensor, row: scales bring all values into range, none is NaN
  bool streamed; // too large to be in cache when it is read

  uint64_t seed, offset;
  int64_t random_row, random_column; // index of an element's random byte is
  uint64_t random_first;             // random_first + row * random_row
  uint32_t random_copy;              //   + column * random_column
};

struct QuantizeCall {
  Matrix x;
  Tiling tiling; // 128x128 if a copy is transposed or in tiles, 32x256 for MX
  const CopyCall *row, *col;
  bool shared;    // the columnwise codes are those of the rowwise copy
  uint32_t *amax; // if not null: bits of the amax of x, found on the way
  const Producer *producer; // where x comes from, if not from memory
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
template <class T> struct TileOf;
// Quantize one tile into either copy or both; both only where they share codes.
template <class T>
void quantize_tensor(const TileOf<T> &tile, const CopyCall *row,
                     const CopyCall *col);
template <class T>
void quantize_row(const TileOf<T> &tile, const CopyCall *row,
                  const CopyCall *col);
template <class T>
void quantize_block(const TileOf<T> &tile, const CopyCall *row,
                    const CopyCall *col);
template <class T>
void quantize_mx(const TileOf<T> &tile, const CopyCall *row,
                 const CopyCall *col);
template <class T>
void quantize_nvfp4(const TileOf<T> &tile, const CopyCall *row,
                    const CopyCall *col);
// MXFP4, and NVFP4 in blocks of 32.
template <class T>
void quantize_fp4_wide(const TileOf<T> &tile, const CopyCall *row,
                       const CopyCall *col);

void quantize(const QuantizeCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
