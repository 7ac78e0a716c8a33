#include "cpu/tape/state_kernels.h"

#include <cstring>

namespace steelyard {
namespace {

// State is small: copied, so that any strides will do.
std::vector<float> floats_of(const Tensor &x) {
  require(x.type.dtype() == Dtype::f32, "state must be float32");
  std::vector<float> floats(x.elements());
  if (!floats.empty())
    copy_elements(x, reinterpret_cast<uint8_t *>(floats.data()));
  return floats;
}

} // namespace

void AmaxKernel::run(const Values &values, int threads) const {
  const Matrix x = values.matrix(0);
  auto *out = memory<float>(values.address(1), per_row && x.rows == 0);
  values.done();
  find_amax(x, out, rht, per_row, threads);
}

void UpdateScaleKernel::run(const Values &values, int) const {
  const std::vector<float> scales = floats_of(values.tensor(0));
  std::vector<float> history = floats_of(values.tensor(1)),
                     newest = floats_of(values.tensor(2));
  if (exchange)
    exchange(newest);
  const size_t count = scales.size();
  require(count > 0 && !history.empty() && history.size() % count == 0,
          "a history must have at least one slot for each scale");
  require(newest.size() == 1 || newest.size() == count,
          "there must be one amax, or one for each scale");
  for (size_t i = 0; i < count; ++i)
    history[i] = newest[newest.size() == 1 ? 0 : i];
  const DelayedState state{scales.data(),
                           history.data(),
                           memory<float>(values.address(3)),
                           memory<float>(values.address(4)),
                           static_cast<int64_t>(history.size() / count),
                           static_cast<int64_t>(count)};
  values.done();
  update_scales(state, nullptr, rule);
}

void AdvanceRngKernel::run(const Values &values, int) const {
  const Tensor given = values.tensor(0);
  require(given.type.bytes == sizeof(uint64_t) && given.elements() == 2,
          "a random state must be two integers of 64 bits");
  uint64_t state[2];
  copy_elements(given, reinterpret_cast<uint8_t *>(state));
  ++state[1];
  std::memcpy(memory(values.address(1)), state, sizeof state);
}

} // namespace steelyard
