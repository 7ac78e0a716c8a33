// The heads of attention, as tensors of (batch, head, token, column).
#pragma once

#include "cpu/attention/attention.h"
#include "cpu/tape/tensor.h"

namespace steelyard {

inline constexpr int kHeadsRank = 4;

inline HeadsView heads_of(const Tensor &x, Dtype dtype) {
  require(x.dims == kHeadsRank, "heads must be (batch, head, token, column)");
  return {x.data,       dtype,        x.strides[0],
          x.strides[1], x.strides[2], x.strides[3]};
}

inline HeadsView heads_of(const Tensor &x) {
  return heads_of(x, x.type.dtype());
}

// The stride of a dim of a tensor that is broadcast to more dims, or to others.
inline int64_t broadcast_stride(const Tensor &x, int dim) {
  const int own = dim - (kHeadsRank - x.dims);
  return own < 0 || x.sizes[own] == 1 ? 0 : x.strides[own];
}

inline HeadsView mask_of(const Tensor &x) {
  require(x.dims <= kHeadsRank, "a mask must have at most 4 dims");
  return {x.data,
          x.type.dtype(),
          broadcast_stride(x, 0),
          broadcast_stride(x, 1),
          broadcast_stride(x, 2),
          broadcast_stride(x, 3)};
}

// The sizes of a problem without results.
AttentionProblem problem_of(const Tensor &query, const Tensor &key);

// The factor of scores; none: one over the root of the head size.
float scale_of(std::optional<float> scale, int64_t head_size);

} // namespace steelyard
