// XLA's buffers as the memory that operations take. Python has checked every
// dtype and shape when the program was traced.
#pragma once

#include <cstdint>

#include "cpu/operations.h"
#include "xla/ffi/api/ffi.h"

namespace steelyard {

namespace ffi = ::xla::ffi;

inline bool is_given(const ffi::AnyBuffer &buffer) {
  return buffer.element_count() > 0;
}

// Elements of the last dims, all but the first `leading` ones.
inline int64_t elements_after(ffi::AnyBuffer::Dimensions dims, size_t leading) {
  int64_t count = 1;
  for (size_t i = leading; i < dims.size(); ++i)
    count *= dims[i];
  return count;
}

inline int64_t elements_before(ffi::AnyBuffer::Dimensions dims, size_t end) {
  int64_t count = 1;
  for (size_t i = 0; i < end; ++i)
    count *= dims[i];
  return count;
}

inline Dtype dtype_of(ffi::DataType type) {
  return type == ffi::DataType::F32    ? Dtype::f32
         : type == ffi::DataType::BF16 ? Dtype::bf16
                                       : Dtype::f16;
}

inline uint8_t *bytes_of(const ffi::AnyBuffer &buffer) {
  return static_cast<uint8_t *>(buffer.untyped_data());
}

inline float *floats_of(const ffi::AnyBuffer &buffer) {
  return static_cast<float *>(buffer.untyped_data());
}

// Bytes of one item of a buffer whose first `leading` dims count items.
inline int64_t item_bytes(const ffi::AnyBuffer &buffer, size_t leading) {
  return elements_after(buffer.dimensions(), leading) *
         ffi::ByteWidth(buffer.element_type());
}

inline bool has_amax(SchemeBits scheme) {
  return scheme.family() == Family::tensor || scheme.family() == Family::nvfp4;
}

// Seed and offset, each two 32-bit words, the low one first.
struct RandomState {
  uint64_t seed = 0, offset = 0;

  static RandomState read(const uint32_t *words) {
    return {words[0] | uint64_t{words[1]} << 32,
            words[2] | uint64_t{words[3]} << 32};
  }
};

// Quantizes into both copies; a rowwise transformed copy is made as the
// columnwise one of the transpose.
inline void quantize_matrix(const Matrix &x, TargetCopy *row, TargetCopy *col,
                            const QuantizeOptions &options, int threads) {
  if (row && row->scheme.rht()) {
    const Matrix transposed{x.data, x.dtype,         x.columns,
                            x.rows, x.column_stride, x.row_stride};
    TargetCopy swapped = *row;
    swapped.columnwise = swapped.swapped = true;
    swapped.M = x.columns;
    swapped.N = x.rows;
    run_quantize(transposed, nullptr, &swapped, options, threads);
    row = nullptr;
  }
  if (row || col)
    run_quantize(x, row, col, options, threads);
}

} // namespace steelyard
