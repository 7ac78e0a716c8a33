#include "cpu/tape/attention_backward_kernel.h"

#include "cpu/tape/heads.h"

namespace steelyard {

void AttentionBackwardKernel::run(const Values &values, int threads) const {
  enum : int { grad_out, query, key, value, out, logsumexp };
  const Tensor q = values.tensor(query), k = values.tensor(key);
  AttentionGradients call{};
  AttentionProblem &problem = call.problem;
  problem = problem_of(q, k);
  problem.query = heads_of(q);
  problem.key = heads_of(k);
  problem.value = heads_of(values.tensor(value));
  if (mask != kNowhere)
    problem.mask = mask_of(values.tensor(mask));
  problem.scale = scale_of(scale, problem.head_size);
  problem.causal = causal;
  call.out = heads_of(values.tensor(out));
  call.grad_out = heads_of(values.tensor(grad_out));
  const Tensor sums = values.tensor(logsumexp);
  require(sums.dims == kHeadsRank - 1, "sums must be (batch, head, token)");
  call.logsumexp = {reinterpret_cast<const float *>(sums.data), sums.strides[0],
                    sums.strides[1], sums.strides[2]};
  call.grad_query = heads_of(values.tensor(gradients));
  call.grad_key = heads_of(values.tensor(gradients + 1));
  call.grad_value = heads_of(values.tensor(gradients + 2));
  values.done();
  if (problem.batches && problem.heads && problem.head_size)
    run_attention_backward(call, threads);
}

} // namespace steelyard
