// Whole operations on plain memory, on at most `threads` threads: what the
// Python bindings and the XLA handlers call. Nothing is checked here.
#pragma once

#include "cpu/formats/scheme.h"
#include "cpu/gemm/gemm.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

struct Producer;

// A quantized copy of an (M, N) matrix. Strides are those of a row of codes and
// of a row of scales, in bytes; 0 for compact ones.
struct StoredCopy {
  SchemeBits scheme;
  bool columnwise;
  uint8_t *codes;
  uint8_t *scales;
  float *amax; // or null
  int64_t M, N;
  int64_t codes_stride = 0, scales_stride = 0;

  StoredShape stored() const { return stored_shape(scheme, columnwise, M, N); }
  int64_t code_row() const {
    return codes_stride ? codes_stride
                        : steelyard::codes_stride(scheme, stored());
  }
  int64_t scale_row() const {
    return scales_stride
               ? scales_stride
               : steelyard::scales_stride(scheme, columnwise, stored());
  }
};

// A copy to be made.
struct TargetCopy : StoredCopy {
  float epsilon = 0;
  bool amax_given = false;
  // A rowwise copy of x is made as the columnwise copy of its transpose.
  bool swapped = false;
};

struct QuantizeOptions {
  const float *scale = nullptr; // of per-tensor copies; null: from the amax
  uint64_t seed = 0, offset = 0;
  Producer *producer = nullptr; // where x comes from, if not from memory
};

// Makes either copy or both; null for none.
void run_quantize(const Matrix &x, const TargetCopy *row, const TargetCopy *col,
                  const QuantizeOptions &options, int threads);

// The values of a copy, as a contiguous (M, N) matrix.
void run_dequantize(const StoredCopy &copy, void *out, Dtype dtype,
                    int threads);

// Fills in the operands of `call`, which says all the rest, and runs it; no dim
// of the output is 0.
void run_gemm(const StoredCopy &a, const StoredCopy &b, GemmCall &call,
              int threads);

} // namespace steelyard
