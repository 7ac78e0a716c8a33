// One head of a tensor as rows of float32. Included by kernel sources only.
#pragma once

#include "cpu/attention/attention.h"
#include "cpu/attention/softmax.h"
#include "cpu/tiles/row_chunk.h"

namespace steelyard::STEELYARD_ISA {

static inline int64_t whole_vectors(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

static inline int64_t bytes_of(const HeadsView &x) {
  return x.scales.data ? 1 : item_size(x.dtype);
}

static inline char *row_start(const HeadsView &x, int64_t batch, int64_t head,
                              int64_t token) {
  const int64_t first =
      batch * x.batch_stride + head * x.head_stride + token * x.token_stride;
  return static_cast<char *>(x.data) + first * bytes_of(x);
}

static inline Matrix head_of(const HeadsView &x, int64_t batch, int64_t head,
                             int64_t tokens, int64_t columns) {
  return {row_start(x, batch, head, 0),
          x.dtype,
          tokens,
          columns,
          x.token_stride,
          x.column_stride};
}

// The keys or values of a head: numbers, or codes with a scale per token.
struct KeptHead {
  Matrix rows, new_rows; // one after the other
  const float *scales;   // null for numbers
  int64_t scales_stride;

  const uint8_t *codes(int64_t row) const {
    return static_cast<const uint8_t *>(rows.data) + row * rows.row_stride;
  }
};

static inline KeptHead kept_head(const AttentionProblem &problem,
                                 const HeadsView &x, const HeadsView &new_x,
                                 int64_t batch, int64_t head) {
  const TokenFloats &scales = x.scales;
  const int64_t first = batch * scales.batch_stride + head * scales.head_stride;
  const int64_t size = problem.head_size, added = problem.new_keys;
  return {head_of(x, batch, head, problem.keys - added, size),
          head_of(new_x, batch, head, added, size),
          scales.data ? scales.data + first : nullptr, scales.token_stride};
}

static inline KeptHead kept_keys(const AttentionProblem &problem, int64_t batch,
                                 int64_t head) {
  return kept_head(problem, problem.key, problem.new_key, batch, head);
}

static inline KeptHead kept_values(const AttentionProblem &problem,
                                   int64_t batch, int64_t head) {
  return kept_head(problem, problem.value, problem.new_value, batch, head);
}

struct Rows {
  const float *data;
  int64_t stride;
};

// Decoded as `dequantize` decodes them.
static inline void decode_rows(const KeptHead &x, int64_t first, int64_t n,
                               int64_t stride, float *out) {
  const int64_t columns = x.rows.columns, step = x.rows.column_stride;
  for (int64_t i = 0; i < n; ++i, out += stride) {
    const uint8_t *codes = x.codes(first + i);
    const float scale = x.scales[(first + i) * x.scales_stride];
    for (int64_t d = 0; d < columns; ++d)
      out[d] = decode<E4M3>(codes[d * step]) * scale;
    std::memset(out + columns, 0, (stride - columns) * sizeof *out);
  }
}

static inline void copy_rows(const Matrix &x, int64_t first, int64_t n,
                             int64_t stride, float *out) {
  for (int64_t i = 0; i < n; ++i, out += stride) {
    const float *found = row_chunk(x, first + i, 0, x.columns, out);
    if (found != out)
      std::memcpy(out, found, x.columns * sizeof *out);
    std::memset(out + x.columns, 0, (stride - x.columns) * sizeof *out);
  }
}

// Rows [first, first + n) whose columns go on to a whole vector: where they
// are, or in `buffer`, with zeros for the columns that are missing. Rows far
// apart are copied if they are read `often`: they may all lie in one cache set.
// New rows are copied too.
static inline Rows load_rows(const KeptHead &head, int64_t first, int64_t n,
                             bool often, float *buffer) {
  const Matrix &x = head.rows;
  const int64_t stride = whole_vectors(x.columns);
  if (head.scales) {
    decode_rows(head, first, n, stride, buffer);
    return {buffer, stride};
  }
  const int64_t own = first < x.rows ? smaller(n, x.rows - first) : 0;
  const bool is_plain =
      x.dtype == Dtype::f32 && x.column_stride == 1 && x.columns == stride;
  if (is_plain && own == n && (!often || x.row_stride == stride))
    return {static_cast<const float *>(x.data) + first * x.row_stride,
            x.row_stride};
  copy_rows(x, first, own, stride, buffer);
  copy_rows(head.new_rows, first + own - x.rows, n - own, stride,
            buffer + own * stride);
  return {buffer, stride};
}

// How many keys a query sees.
static inline int64_t visible_keys(const AttentionProblem &problem,
                                   int64_t query) {
  return problem.causal ? smaller(query + 1, problem.keys) : problem.keys;
}

// The end of a query: its row of sums is divided and written.
static inline void finish_query(const AttentionProblem &problem, int64_t batch,
                                int64_t head, int64_t query, float *sums,
                                float largest, float total) {
  const bool is_seen = !(total == 0.0f);
  const float factor = 1.0f / total;
  for (int64_t d = 0; d < problem.head_size; ++d)
    sums[d] = is_seen ? sums[d] * factor : 0.0f;
  if (problem.head_size > 0)
    store_row(sums, problem.head_size, problem.out.dtype,
              row_start(problem.out, batch, head, query));
  problem.logsumexp[(batch * problem.queries + query) * problem.heads + head] =
      is_seen ? largest + __builtin_logf(total) : 0.0f;
}

} // namespace steelyard::STEELYARD_ISA
