// The scaled GEMM: out = epilogue(factors * (a b^T) + addends) + residual, both
// operands decoded to panels of float32 or integers while they are packed.
//
// A block of the output has its accumulators in a workspace. For each slab of
// k, `gemm_pack` decodes the rows of `a`; then each task of `gemm_multiply`
// owns a tile of the block, decodes the columns of `b` that it needs slice by
// slice, and adds to its accumulators. With the last slab it also writes the
// output. Every element sums its k in the same order whatever the tiles, so
// bytes do not depend on the split.
#pragma once

#include "cpu/produce/activations.h"
#include "cpu/quantize/quantize.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

// k that a packed panel holds: a multiple of every block.
inline constexpr int64_t kSlice = 256;
// Packed rows and columns come in these units, which every kernel divides.
inline constexpr int64_t kRowUnit = 48, kColumnUnit = 32;
// Columns of b that a task packs at a time.
inline constexpr int64_t kMostTileColumns = 128;
// From one packed row to the next: they must not all start in one cache set.
inline constexpr int64_t kRowStride = kSlice + 16;
// What panels hold at most, as a power of two, before the code is multiplied:
// no sum overflows.
inline constexpr int kPanelExponent = 30;

enum class ScaleType : int { none, f32, e8m0, e4m3 };
// What panels and accumulators hold. Integers are those of integer.h, with
// float32 accumulators.
enum class Panels : int { f32, f64, integers };
// Up to so many rows, FP8 columns are decoded and NVFP4 ones expanded on the
// way to the sums.
inline constexpr int64_t kFewRows = 16, kFewIntegerRows = 8;
// Up to so many of them, block scales are multiplied into the sums.
inline constexpr int64_t kFewestRows = 4;
// What few rows, or their scales, are multiplied by, as a power of two: columns
// are held as small as their bits happen to be.
inline constexpr int kFewLift = 80;
// How far ahead packed columns are fetched: half a page, where the processor
// itself looks no further than the page.
inline constexpr int64_t kBytesAhead = 2048;
// Columns, or groups of them, that one row passes side by side: memory serves
// several streams faster than one.
inline constexpr int64_t kStreams = 4;

// One quantized operand, (outer, k) with k reduced; codes need no alignment.
struct GemmOperand {
  const uint8_t *codes;
  int64_t codes_stride; // bytes a stored row
  Element element;
  bool k_major; // stored (k, outer), as columnwise MX; otherwise (outer, k)
  bool packed;  // codes and scales lie as in packed_weight.h
  int64_t outer, k;

  const void *scales; // of element (i, p): [i >> outer_shift][p >> k_shift]
  ScaleType scale_type;
  int outer_shift, k_shift;       // the sides of a block are powers of two
  int64_t outer_stride, k_stride; // in scales
  int64_t scale_count;            // e8m0: bytes of `scales`

  int64_t outer_block() const { return int64_t{1} << outer_shift; }
  int64_t k_block() const { return int64_t{1} << k_shift; }

  // Panels hold code * scale * unit * fold; the rest of the value is left to
  // the factors at the end.
  double unit;           // a power of two
  const float *fold;     // (outer,): levels above `scales` that are not finite
  const double *factors; // (outer,); null for one
  double factor;
};

struct GemmCall {
  GemmOperand a, b;
  Matrix addends[2]; // null data for none; a row stride of 0 repeats a row
  void *out;         // (a.outer, b.outer), unit column stride
  Dtype out_dtype;
  int64_t out_stride; // in elements

  Activation epilogue;
  Matrix residual;     // null data for none
  void *preactivation; // what the epilogue is given, like `out`, or null
  int64_t preactivation_stride;

  Panels panels;
  bool few;           // at most kFewRows or kFewIntegerRows rows
  void *packed;       // rows of `a`: [slice][row][kRowStride], or IntegerRows
  void *accumulators; // [tile][tile_rows][tile_columns]; both 64-byte aligned

  int64_t row, rows, column, columns; // the block of the output
  int64_t k, slices;                  // the slab: first k, number of slices
  bool first_slab, last_slab;
  int64_t tile_rows, tile_columns; // multiples of kRowUnit and kColumnUnit

  int64_t units() const { return (rows + kRowUnit - 1) / kRowUnit; }
  int64_t tiles_down() const { return (rows + tile_rows - 1) / tile_rows; }
  int64_t tiles_across() const {
    return (columns + tile_columns - 1) / tile_columns;
  }
};

// Binary exponents of the scales that are finite and not zero; low > high when
// there is none.
struct ScaleRange {
  int low, high;
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: units() * slices. Task t packs unit t / slices of slice t % slices.
void gemm_pack(const GemmCall &call, int64_t begin, int64_t end);
// Tasks: tiles_down() * tiles_across(), numbered down first.
void gemm_multiply(const GemmCall &call, int64_t begin, int64_t end);
// The same with panels of integers, where `has_avx2` says so.
void pack_integers(const GemmCall &call, int64_t begin, int64_t end);
void multiply_integers(const GemmCall &call, int64_t begin, int64_t end);
// `skip_zeros` leaves out blocks whose codes are all zero.
ScaleRange gemm_scale_range(const GemmOperand &operand, bool skip_zeros);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
