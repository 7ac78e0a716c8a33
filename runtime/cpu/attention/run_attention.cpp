#include "cpu/attention/attention.h"
#include "cpu/dispatch/kernel_table.h"
#include "cpu/gemm/workspace.h"
#include "cpu/operations.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Whether causal or not: a causal mask that is given as one has the same sums.
bool has_few_queries(const AttentionProblem &problem) {
  return problem.queries <= kFewQueries &&
         group_size(problem) * problem.queries <= kSharingQueries;
}

void run_blocks(const AttentionProblem &problem, int threads) {
  const KernelTable &table = kernels();
  const AttentionCall call{problem, pieces(problem.queries, kBlockQueries),
                           nullptr};
  parallel_for(problem.batches * problem.heads * call.splits, 1, threads,
               [&](int64_t begin, int64_t end) {
                 table.attend_blocks(call, begin, end);
               });
}

void run_few(const AttentionProblem &problem, int threads) {
  const KernelTable &table = kernels();
  const int64_t key_heads = problem.batches * problem.key_heads;
  // One chunk even of no keys: zeros are written too.
  const int64_t splits =
      problem.keys > kChunkKeys ? pieces(problem.keys, kChunkKeys) : 1;
  const int64_t size = key_heads * splits * partial_size(problem);
  const AttentionCall call{problem, splits,
                           static_cast<float *>(thread_workspace(
                               WorkspaceUse::partials, size * sizeof(float)))};
  // Threads share no fewer keys than a chunk has.
  const int64_t grain = kChunkKeys / (problem.keys + 1) + 1;
  parallel_for(
      key_heads * splits, grain, threads,
      [&](int64_t begin, int64_t end) { table.attend_few(call, begin, end); });
  // As one task: there is little to merge.
  parallel_for(key_heads, key_heads, 1, [&](int64_t begin, int64_t end) {
    table.merge_few(call, begin, end);
  });
}

} // namespace

void run_attention(const AttentionProblem &problem, int threads) {
  if (problem.batches == 0 || problem.heads == 0 || problem.queries == 0)
    return;
  if (has_few_queries(problem))
    run_few(problem, threads);
  else
    run_blocks(problem, threads);
}

void run_attention_backward(const AttentionGradients &gradients, int threads) {
  const KernelTable &table = kernels();
  parallel_for(gradients.problem.batches * gradients.problem.key_heads, 1,
               threads, [&](int64_t begin, int64_t end) {
                 table.attend_backward(gradients, begin, end);
               });
}

} // namespace steelyard
