#include "cpu/tape/copy.h"

#include <algorithm>

#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

// Bytes that are not worth a thread of their own.
constexpr int64_t kGrainBytes = 1 << 16;

// Runs are what lies in order in both.
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
    return offset_of(x, outer_, run) * x.type.bytes;
  }

  const Tensor &from_, &to_;
  int outer_;
  int64_t run_, runs_;
};

} // namespace

void copy_tensor(const Tensor &from, const Tensor &to, int threads) {
  if (from.elements() > 0)
    Copy(from, to).run(threads);
}

} // namespace steelyard
