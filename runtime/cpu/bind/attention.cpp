#include "cpu/attention/attention.h"
#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// batches, heads, key heads, queries, keys, head size
using SizeArguments =
    std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

// data, dtype, and the strides of batch, head, token and column
using HeadsArguments =
    std::tuple<uintptr_t, int, int64_t, int64_t, int64_t, int64_t>;

// data, and the strides of batch, head and token
using TokenArguments = std::tuple<uintptr_t, int64_t, int64_t, int64_t>;

TokenFloats token_floats(const std::optional<TokenArguments> &arguments,
                         bool is_empty) {
  if (!arguments || is_empty)
    return {};
  const auto &[data, batch, head, token] = *arguments;
  return {memory<float>(data, false), batch, head, token};
}

HeadsView heads_of(const HeadsArguments &arguments, bool is_empty) {
  const auto &[data, dtype, batch, head, token, column] = arguments;
  // What has no elements may have no memory, and there is nowhere to stride.
  if (is_empty)
    return {nullptr, dtype_of(dtype), 0, 0, 0, 0};
  return {memory(data), dtype_of(dtype), batch, head, token, column};
}

AttentionProblem sizes_of(const SizeArguments &sizes) {
  AttentionProblem problem{};
  std::tie(problem.batches, problem.heads, problem.key_heads, problem.queries,
           problem.keys, problem.head_size) = sizes;
  const bool known = problem.batches >= 0 && problem.heads >= 0 &&
                     problem.key_heads >= 0 && problem.queries >= 0 &&
                     problem.keys >= 0 && problem.head_size >= 0;
  require(known, "sizes must not be negative");
  require(problem.key_heads == 0 ? problem.heads == 0
                                 : problem.heads % problem.key_heads == 0,
          "heads must be a multiple of key heads");
  return problem;
}

} // namespace

void bind_attention(nb::module_ &m) {
  m.def(
      "attention",
      [](const SizeArguments &sizes, const HeadsArguments &query,
         const HeadsArguments &key, const HeadsArguments &value,
         const std::optional<HeadsArguments> &mask, const HeadsArguments &out,
         uintptr_t logsumexp, float scale, bool causal, int threads,
         const std::optional<TokenArguments> &key_scales,
         const std::optional<TokenArguments> &value_scales) {
        nb::gil_scoped_release release;
        AttentionProblem problem = sizes_of(sizes);
        const bool no_rows =
            problem.batches == 0 || problem.heads == 0 || problem.queries == 0;
        const bool no_queries = no_rows || problem.head_size == 0;
        const bool no_keys = no_queries || problem.keys == 0;
        problem.query = heads_of(query, no_queries);
        problem.key = heads_of(key, no_keys);
        problem.value = heads_of(value, no_keys);
        problem.key.scales = token_floats(key_scales, no_keys);
        problem.value.scales = token_floats(value_scales, no_keys);
        problem.out = heads_of(out, no_queries);
        if (mask && !no_rows && problem.keys > 0)
          problem.mask = heads_of(*mask, false);
        problem.logsumexp = memory<float>(logsumexp, no_rows);
        problem.scale = scale;
        problem.causal = causal;
        run_attention(problem, threads);
      },
      "Write softmax(scale * query key^T + mask) value of each head, whose "
      "columns are contiguous, and the logarithms of its sums as (batch, "
      "query, head). Keys and values with scales are E4M3 codes.");
  m.def(
      "attention_backward",
      [](const SizeArguments &sizes, const HeadsArguments &query,
         const HeadsArguments &key, const HeadsArguments &value,
         const std::optional<HeadsArguments> &mask, const HeadsArguments &out,
         const HeadsArguments &grad_out, const TokenArguments &logsumexp,
         const HeadsArguments &grad_query, const HeadsArguments &grad_key,
         const HeadsArguments &grad_value, float scale, bool causal,
         int threads) {
        nb::gil_scoped_release release;
        AttentionGradients call{};
        AttentionProblem &problem = call.problem;
        problem = sizes_of(sizes);
        const bool no_columns = problem.batches == 0 || problem.heads == 0 ||
                                problem.head_size == 0;
        const bool no_queries = no_columns || problem.queries == 0;
        const bool no_keys = no_columns || problem.keys == 0;
        problem.query = heads_of(query, no_queries);
        problem.key = heads_of(key, no_keys);
        problem.value = heads_of(value, no_keys);
        if (mask && !no_queries && !no_keys)
          problem.mask = heads_of(*mask, false);
        problem.scale = scale;
        problem.causal = causal;
        call.out = heads_of(out, no_queries);
        call.grad_out = heads_of(grad_out, no_queries);
        call.logsumexp = token_floats(logsumexp, no_queries);
        call.grad_query = heads_of(grad_query, no_queries);
        call.grad_key = heads_of(grad_key, no_keys);
        call.grad_value = heads_of(grad_value, no_keys);
        if (!no_columns)
          run_attention_backward(call, threads);
      },
      "Write the gradients of attention, whose columns are contiguous, from "
      "its operands, its result, the logarithms of its sums, and the gradient "
      "of its result.");
}

} // namespace steelyard
