#include "cpu/tape/attention_kernel.h"

#include <cmath>

#include "cpu/tape/heads.h"

namespace steelyard {
namespace {

// One alone, or one per token of each head, with a last dim of 1.
TokenFloats scales_of(const Tensor &x) {
  return {reinterpret_cast<const float *>(x.data), broadcast_stride(x, 0),
          broadcast_stride(x, 1), broadcast_stride(x, 2)};
}

} // namespace

AttentionProblem problem_of(const Tensor &query, const Tensor &key) {
  AttentionProblem problem{};
  require(query.dims == kHeadsRank && key.dims == kHeadsRank,
          "heads must be (batch, head, token, column)");
  problem.batches = query.sizes[0];
  problem.heads = query.sizes[1];
  problem.queries = query.sizes[2];
  problem.head_size = query.sizes[3];
  problem.key_heads = key.sizes[1];
  problem.keys = key.sizes[2];
  require(problem.key_heads == 0 ? problem.heads == 0
                                 : problem.heads % problem.key_heads == 0,
          "heads must be a multiple of key heads");
  return problem;
}

float scale_of(std::optional<float> scale, int64_t head_size) {
  const auto root = std::sqrt(static_cast<double>(head_size));
  return scale.value_or(head_size ? static_cast<float>(1 / root) : 1.0f);
}

void AttentionKernel::run(const Values &values, int threads) const {
  const Tensor q = values.tensor(query), k = values.tensor(key),
               v = values.tensor(value), result = values.tensor(out);
  AttentionProblem problem = problem_of(q, k);
  problem.query = heads_of(q);
  // Codes have no dtype of theirs.
  const Dtype kept = key_scales == kNowhere ? k.type.dtype() : Dtype::f32;
  problem.key = heads_of(k, kept);
  problem.value = heads_of(v, kept);
  problem.out = heads_of(result);
  if (key_scales != kNowhere) {
    problem.key.scales = scales_of(values.tensor(key_scales));
    problem.value.scales = scales_of(values.tensor(value_scales));
  }
  if (new_key != kNowhere) {
    const Tensor more = values.tensor(new_key);
    problem.new_key = heads_of(more);
    problem.new_value = heads_of(values.tensor(new_value), more.type.dtype());
    problem.new_keys = more.sizes[2];
    problem.keys += problem.new_keys;
  }
  if (mask != kNowhere)
    problem.mask = mask_of(values.tensor(mask));
  problem.logsumexp = pointer<float>(values.address(logsumexp));
  problem.scale = scale_of(scale, problem.head_size);
  problem.causal = causal;
  values.done();
  run_attention(problem, threads);
}

} // namespace steelyard
