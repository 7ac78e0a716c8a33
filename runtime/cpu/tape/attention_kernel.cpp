#include "cpu/tape/attention_kernel.h"

#include <cmath>

#include "cpu/attention/attention.h"

namespace steelyard {
namespace {

constexpr int kRank = 4;

HeadsView heads_of(const Tensor &x, Dtype dtype) {
  require(x.dims == kRank, "heads must be (batch, head, token, column)");
  return {x.data,       dtype,        x.strides[0],
          x.strides[1], x.strides[2], x.strides[3]};
}

// The stride of a dim of a tensor that is broadcast to more dims, or to others.
int64_t broadcast_stride(const Tensor &x, int dim) {
  const int own = dim - (kRank - x.dims);
  return own < 0 || x.sizes[own] == 1 ? 0 : x.strides[own];
}

HeadsView mask_of(const Tensor &x) {
  require(x.dims <= kRank, "a mask must have at most 4 dims");
  return {x.data,
          x.type.dtype(),
          broadcast_stride(x, 0),
          broadcast_stride(x, 1),
          broadcast_stride(x, 2),
          broadcast_stride(x, 3)};
}

// One alone, or one per token of each head, with a last dim of 1.
TokenFloats scales_of(const Tensor &x) {
  return {reinterpret_cast<const float *>(x.data), broadcast_stride(x, 0),
          broadcast_stride(x, 1), broadcast_stride(x, 2)};
}

} // namespace

void AttentionKernel::run(const Values &values, int threads) const {
  const Tensor q = values.tensor(query), k = values.tensor(key),
               v = values.tensor(value), result = values.tensor(out);
  AttentionProblem problem{};
  problem.query = heads_of(q, q.type.dtype());
  // Codes have no dtype of theirs.
  const Dtype kept = key_scales == kNowhere ? k.type.dtype() : Dtype::f32;
  problem.key = heads_of(k, kept);
  problem.value = heads_of(v, kept);
  problem.out = heads_of(result, result.type.dtype());
  problem.batches = q.sizes[0];
  problem.heads = q.sizes[1];
  problem.queries = q.sizes[2];
  problem.head_size = q.sizes[3];
  problem.key_heads = k.sizes[1];
  problem.keys = k.sizes[2];
  require(problem.key_heads == 0 ? problem.heads == 0
                                 : problem.heads % problem.key_heads == 0,
          "heads must be a multiple of key heads");
  if (key_scales != kNowhere) {
    problem.key.scales = scales_of(values.tensor(key_scales));
    problem.value.scales = scales_of(values.tensor(value_scales));
  }
  if (new_key != kNowhere) {
    const Tensor more = values.tensor(new_key);
    problem.new_key = heads_of(more, more.type.dtype());
    problem.new_value = heads_of(values.tensor(new_value), more.type.dtype());
    problem.new_keys = more.sizes[2];
    problem.keys += problem.new_keys;
  }
  if (mask != kNowhere)
    problem.mask = mask_of(values.tensor(mask));
  problem.logsumexp = pointer<float>(values.address(logsumexp));
  const auto root = std::sqrt(static_cast<double>(problem.head_size));
  problem.scale =
      scale.value_or(problem.head_size ? static_cast<float>(1 / root) : 1.0f);
  problem.causal = causal;
  values.done();
  run_attention(problem, threads);
}

} // namespace steelyard
