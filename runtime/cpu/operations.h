// Whole operations on plain memory, on at most `threads` threads, and what they
// are told about it: the Python bindings and the XLA handlers both describe
// their arguments by these structs. Nothing is checked here.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "cpu/formats/scheme.h"
#include "cpu/gemm/result.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

struct AttentionGradients;
struct AttentionProblem;
struct ElementwiseProgram;
struct ElementwiseTensor;
struct Producer;
struct NormBackwardCall;
struct RowsCall;
struct AddRowsCall;
struct SumsCall;

// Rows one after the other.
inline Matrix contiguous_matrix(const void *data, Dtype dtype, int64_t rows,
                                int64_t columns) {
  return {data, dtype, rows, columns, columns, 1};
}

// One row that every row of a matrix gets.
inline Matrix repeated_row(const void *data, Dtype dtype, int64_t rows,
                           int64_t columns) {
  return {data, dtype, rows, columns, 0, 1};
}

inline Matrix transposed(const Matrix &x) {
  return {x.data, x.dtype, x.columns, x.rows, x.column_stride, x.row_stride};
}

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
  bool amax_given = false; // `amax` holds it already
};

// A part of a matrix: its first row and column, and the size of the whole.
struct Place {
  int64_t row, column, rows, columns;
};

struct QuantizeArguments {
  Matrix x;
  std::optional<TargetCopy> row{}, col{};
  const float *scale = nullptr; // of per-tensor copies; null: from the amax
  uint64_t seed = 0, offset = 0;
  // Where x comes from, if not from memory; its rowwise copy has no transform.
  Producer *producer = nullptr;
  // If x is a part of a matrix, its random bytes are those of that matrix.
  std::optional<Place> place{};
};

// Makes either copy or both.
void run_quantize(const QuantizeArguments &arguments, int threads);

// Writes what a producer makes into a contiguous matrix. `amax`, if not null,
// is raised to that of what is written.
void run_produce(const Matrix &out, const Producer &producer, float *amax,
                 int threads);

// Writes the largest magnitude of a matrix, or of each row: 0 if it is empty,
// one NaN if it holds any. `rht`: after the Hadamard transform of columns.
void find_amax(const Matrix &x, float *out, bool rht, bool per_row,
               int threads);

// Makes what a function makes of each row. Any size may be 0.
void run_rows(const RowsCall &call, int threads);
void run_sums(const SumsCall &call, int threads);

// Makes the gradients of a layer norm; the call needs no memory for sums.
void run_norm_backward(NormBackwardCall call, int threads);

// Writes a table of `count` rows: zeros, and what is added to them.
void run_add_rows(const AddRowsCall &call, int64_t count, int threads);

// The values of a copy, as a contiguous (M, N) matrix.
void run_dequantize(const StoredCopy &copy, void *out, Dtype dtype,
                    int threads);

// Makes the copy of the other usage, whose memory `to` has, from the codes: of
// a scheme with one scale or with square tiles.
void run_transpose(const StoredCopy &from, const StoredCopy &to, int threads);

// The product of two copies, each reduced along the dim that it is quantized
// along, and where it goes; no dim of the output is 0.
struct GemmArguments {
  std::variant<StoredCopy, Matrix> a; // a matrix is reduced along its rows
  StoredCopy b;
  GemmResult result;
};

void run_gemm(const GemmArguments &arguments, int threads);

// Any sizes may be 0.
void run_attention(const AttentionProblem &problem, int threads);
void run_attention_backward(const AttentionGradients &gradients, int threads);

// Runs a program on the tensors that it numbers, with the sizes that it leaves
// to its calls. Any size may be 0.
void run_elementwise(const ElementwiseProgram &program,
                     const ElementwiseTensor *tensors, const int64_t *sizes,
                     int threads);

} // namespace steelyard
