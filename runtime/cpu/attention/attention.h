// Attention: softmax(scale * query key^T + mask) value for each head, with the
// softmax computed as keys come (Dao et al., FlashAttention), so that no matrix
// of scores is ever in memory. All sums are float32.
//
// Two families share one problem. `attend_blocks` takes a block of queries of
// one head at a time, with queries in the lanes of vectors. `attend_few` takes
// the few queries that all heads of one key head have, so that keys and values
// are read once: a chunk of keys at a time, merged by `merge_few`. How a
// problem is split follows from its shape alone.
//
// Causal masks begin at the first key, as torch's do: query i sees keys 0 to i.
// What a causal mask hides is never read into a result, whatever its value;
// what a mask of -inf hides may or may not be, if it is NaN or infinite. A
// query that sees no key, or only keys whose scores are -inf, gives zeros, and
// 0 as its logarithm.
#pragma once

#include <cstdint>

#include "cpu/tiles/matrix.h"

namespace steelyard {

// A float32 for each token of each head, such as the scale of its codes; any
// strides, in elements.
struct TokenFloats {
  const float *data;
  int64_t batch_stride, head_stride, token_stride;
};

// (batch, head, token, column), any strides, in elements. A mask has queries
// for tokens and keys for columns, and stride 0 where it is broadcast. Keys and
// values may be E4M3 codes, a byte each: those that have scales are.
struct HeadsView {
  void *data;
  Dtype dtype;
  int64_t batch_stride, head_stride, token_stride, column_stride;
  TokenFloats scales{};
};

struct AttentionProblem {
  int64_t batches, heads, key_heads; // heads is a multiple of key_heads
  int64_t queries, keys, head_size;
  HeadsView query, key, value, out; // both key and value are codes, or neither
  // The last `new_keys` of the keys and their values, which are no codes: a
  // cache need not be copied to be one with what is appended to it.
  HeadsView new_key, new_value;
  int64_t new_keys;
  HeadsView mask;   // added to scores; null data for none
  float *logsumexp; // of the scores, (batch, query, head)
  float scale;
  bool causal;
};

// What attention is differentiated from and into. Of the forward, `problem` has
// all but its results. No gradient of the mask is made. NaN and infinities may
// spread to gradients of tokens that do not see each other.
struct AttentionGradients {
  AttentionProblem problem;
  HeadsView out, grad_out;
  TokenFloats logsumexp;
  HeadsView grad_query, grad_key, grad_value;
};

inline constexpr int64_t kBlockQueries = 144;
// Most queries that `attend_few` takes, of a head and of all heads of one key
// head: with more of a head, lanes full of queries do better.
inline constexpr int64_t kFewQueries = 16, kSharingQueries = 64;
inline constexpr int64_t kChunkKeys = 512;

struct AttentionCall {
  const AttentionProblem &problem;
  int64_t splits; // blocks of queries per head, or chunks of keys per key head
  // Of `attend_few`, [key head][chunk]: what partial_size() says.
  float *partials;
};

// Static, as each instruction set must have its own.
static inline int64_t group_size(const AttentionProblem &problem) {
  return problem.heads / problem.key_heads;
}

// Values of a chunk: a row of sums, a maximum and a sum for each query.
static inline int64_t partial_size(const AttentionProblem &problem) {
  return group_size(problem) * problem.queries * (problem.head_size + 2);
}

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: batches * heads * splits; task t is block t % splits of a head.
void attend_blocks(const AttentionCall &call, int64_t begin, int64_t end);
// Tasks: batches * key_heads * splits; task t is chunk t % splits.
void attend_few(const AttentionCall &call, int64_t begin, int64_t end);
// Tasks: batches * key_heads.
void merge_few(const AttentionCall &call, int64_t begin, int64_t end);
// Tasks: batches * key_heads: the heads of a key head add to its gradients.
void attend_backward(const AttentionGradients &call, int64_t begin,
                     int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
