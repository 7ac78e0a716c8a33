#include "cpu/decode/dequantize.h"

#include "cpu/formats/bytes.h"
#include "cpu/quantize/hadamard.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int64_t kStripe = 16;

struct alignas(64) Scratch {
  float values[kTileSide][kTileSide];
  float stripe[kStripe][kTileSide];
  float row[kTileColumns];
};

// A scale of the tensor, or one per row: the same for all columns.
static bool is_same_along(const DequantizeCall &call) {
  return call.family == Family::tensor || call.family == Family::row;
}

// The scale of a block of NVFP4 under a second level that is given: rounded
// before a code is multiplied by it, as those who publish such levels do.
static float with_given_level(const DequantizeCall &call, float scale) {
  if (call.is_divisor)
    return scale / *call.amax;
  return call.is_static ? scale * *call.amax : scale;
}

static float scale_value(const DequantizeCall &call, int64_t row,
                         int64_t column) {
  const uint8_t *scales =
      call.scales + row / call.scale_rows * call.scales_stride;
  if (call.family == Family::mx || call.family == Family::mxfp4)
    return decode_e8m0(scales[column / call.scale_columns]);
  if (call.family == Family::nvfp4)
    return with_given_level(call,
                            decode_e4m3(scales[column / call.scale_columns]));
  const int64_t index = is_same_along(call) ? 0 : column / call.scale_columns;
  float value;
  std::memcpy(&value, scales + index * sizeof value, sizeof value);
  return value;
}

static void spread_scales(const DequantizeCall &call, int64_t row,
                          int64_t column, int64_t n, float *out) {
  if (call.family == Family::mx && call.scale_columns == 1) {
    const uint8_t *bytes =
        call.scales + row / call.scale_rows * call.scales_stride + column;
    for (int64_t j = 0; j < n; ++j)
      out[j] = decode_e8m0(bytes[j]);
    return;
  }
  const int64_t step = is_same_along(call) ? n : call.scale_columns;
  for (int64_t first = 0; first < n; first += step) {
    const float scale = scale_value(call, row, column + first);
    for (int64_t j = first; j < smaller(first + step, n); ++j)
      out[j] = scale;
  }
}

template <class Format>
static void decode_scaled(const uint8_t *codes, int64_t n, const float *scales,
                          float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] = decode<Format>(codes[j]) * scales[j];
}

// n values of a stored row from `column`, a multiple of 128.
static void decode_row(const DequantizeCall &call, int64_t row, int64_t column,
                       int64_t n, float *out) {
  alignas(64) float scales[kTileColumns];
  spread_scales(call, row, column, n, scales);
  const uint8_t *codes = call.codes + row * call.codes_stride;
  if (call.element == Element::e4m3)
    return decode_scaled<E4M3>(codes + column, n, scales, out);
  if (call.element == Element::e5m2)
    return decode_scaled<E5M2>(codes + column, n, scales, out);
  alignas(64) uint8_t unpacked[kTileColumns];
  unpack_row(codes + column / 2, n, unpacked);
  decode_scaled<E2M1>(unpacked, n, scales, out);
  if (call.family != Family::nvfp4 || call.is_static)
    return;
  const float amax = call.amax[call.row_scaled ? row : 0];
  for (int64_t j = 0; j < n; ++j)
    out[j] = out[j] * amax * call.inverse_range;
}

// Butterflies and signs along a row of whole groups of 16.
static void invert_transform(float *row, int64_t n) {
  for (int64_t first = 0; first < n; first += 16) {
    float *group = row + first;
    for (int64_t stride = 1; stride < 16; stride *= 2)
      for (int64_t i = 0; i < 16; ++i) {
        if (i & stride)
          continue;
        const float a = group[i], b = group[i + stride];
        group[i] = a + b;
        group[i + stride] = a - b;
      }
    for (int64_t i = 0; i < 16; ++i)
      group[i] = group[i] * 0.25f * kHadamardSigns[i];
  }
}

static void store_row(const DequantizeCall &call, int64_t row, int64_t column,
                      int64_t n, const float *values) {
  const int64_t index = row * call.columns + column;
  if (call.dtype == Dtype::f32) {
    std::memcpy(static_cast<float *>(call.out) + index, values,
                n * sizeof(float));
    return;
  }
  uint16_t *out = static_cast<uint16_t *>(call.out) + index;
  if (call.dtype == Dtype::bf16) {
    for (int64_t j = 0; j < n; ++j)
      out[j] = to_bf16(values[j]);
    return;
  }
  for (int64_t j = 0; j < n; ++j)
    out[j] = to_f16(values[j]);
}

// Decodes n stored values, with the padding that a transform needs.
static void decode_stored(const DequantizeCall &call, int64_t row,
                          int64_t column, int64_t n, float *out) {
  if (!call.rht)
    return decode_row(call, row, column, n, out);
  const int64_t whole = (n + 15) / 16 * 16;
  decode_row(call, row, column, whole, out);
  invert_transform(out, whole);
}

static void dequantize_tile(const DequantizeCall &call, const TilePlace &tile,
                            Scratch &scratch) {
  if (!call.transposed) {
    for (int64_t i = 0; i < tile.rows; ++i) {
      decode_stored(call, tile.row + i, tile.column, tile.columns, scratch.row);
      store_row(call, tile.row + i, tile.column, tile.columns, scratch.row);
    }
    return;
  }
  for (int64_t j = 0; j < tile.columns; ++j)
    decode_stored(call, tile.column + j, tile.row, tile.rows,
                  scratch.values[j]);
  // A cache line of each decoded row at a time.
  for (int64_t first = 0; first < tile.rows; first += kStripe) {
    for (int64_t j = 0; j < tile.columns; ++j)
      for (int64_t i = 0; i < kStripe; ++i)
        scratch.stripe[i][j] = scratch.values[j][first + i];
    for (int64_t i = 0; i < smaller(kStripe, tile.rows - first); ++i)
      store_row(call, tile.row + first + i, tile.column, tile.columns,
                scratch.stripe[i]);
  }
}

void dequantize(const DequantizeCall &call, int64_t begin, int64_t end) {
  Scratch scratch;
  for (int64_t index = begin; index < end; ++index) {
    const TilePlace tile =
        locate_tile(call.tiling, call.rows, call.columns, index);
    dequantize_tile(call, tile, scratch);
  }
}

} // namespace steelyard::STEELYARD_ISA
