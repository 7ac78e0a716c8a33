#include "cpu/tape/concatenate_kernel.h"

#include <algorithm>
#include <vector>

#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

// Bytes that are not worth a thread of their own.
constexpr int64_t kGrainBytes = 1 << 16;

// Copies a tensor into another of the same sizes. Runs are what lies in order
// in both.
class Copy {
public:
  Copy(const Tensor &from, const Tensor &to) : from_(from), to_(to) {
    outer_ = from.dims;
    run_ = 1;
    while (outer_ > 0 && is_next(outer_ - 1))
      run_ *= from.sizes[--outer_];
    runs_ = 1;
    for (int i = 0; i < outer_; ++i)
      runs_ *= from.sizes[i];
  }

  void run(int threads) const {
    const int64_t bytes = run_ * from_.type.bytes;
    const int64_t grain = std::max<int64_t>(1, kGrainBytes / bytes);
    parallel_for(runs_, grain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::copy_n(from_.data + offset(from_, i), bytes,
                    to_.data + offset(to_, i));
    });
  }

private:
  bool is_next(int dim) const {
    return from_.sizes[dim] == 1 ||
           (from_.strides[dim] == run_ && to_.strides[dim] == run_);
  }

  // Where a run begins, in bytes.
  int64_t offset(const Tensor &x, int64_t run) const {
    int64_t elements = 0;
    for (int i = outer_; i-- > 0; run /= x.sizes[i])
      elements += run % x.sizes[i] * x.strides[i];
    return elements * x.type.bytes;
  }

  const Tensor &from_, &to_;
  int outer_;
  int64_t run_, runs_;
};

} // namespace

void ConcatenateKernel::run(const Values &values, int threads) const {
  const Tensor result = values.tensor(count);
  require(dim >= 0 && dim < result.dims, "a dim must be one of its tensor");
  std::vector<Tensor> parts;
  for (int i = 0; i < count; ++i)
    parts.push_back(values.tensor(i));
  values.done();
  int64_t begin = 0;
  for (const Tensor &part : parts) {
    Tensor target = result;
    target.sizes = part.sizes;
    target.data += begin * result.strides[dim] * result.type.bytes;
    begin += part.sizes[dim];
    for (int i = 0; i < result.dims; ++i)
      require(part.dims == result.dims &&
                  (i == dim || part.sizes[i] == result.sizes[i]),
              "parts must have the sizes of the whole but along its dim");
    require(begin <= result.sizes[dim], "parts must fit into the whole");
    if (part.elements() > 0)
      Copy(part, target).run(threads);
  }
}

} // namespace steelyard
