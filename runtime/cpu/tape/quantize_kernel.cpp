#include "cpu/tape/quantize_kernel.h"

#include <memory>

namespace steelyard {

std::optional<TargetCopy>
destination_of(const std::optional<DestinationSlots> &slots,
               const Values &values, const Matrix &x, bool columnwise) {
  if (!slots)
    return std::nullopt;
  const auto &[bits, epsilon, codes, scales, amax, is_plain] = *slots;
  const TargetArguments arguments{bits,
                                  epsilon,
                                  values.address_or_null(codes),
                                  values.address_or_null(scales),
                                  values.address_or_null(amax),
                                  false};
  return target_of(arguments, x, columnwise);
}

void set_random_state(QuantizeArguments &arguments, int rng,
                      const Values &values) {
  if (rng == kNowhere)
    return;
  const auto *state = memory<const uint64_t>(values.address(rng));
  arguments.seed = state[0];
  arguments.offset = state[1];
}

namespace {

// Exponentials cost more than memory, unless that is new: an allocator gives
// large blocks back each time.
bool is_kept(const Matrix &x) {
  constexpr int64_t kReusedBytes = int64_t{32} << 20;
  return x.dtype != Dtype::f32 || x.rows * x.columns * 4 <= kReusedBytes;
}

void give_amax(const std::optional<DestinationSlots> &slots,
               std::optional<TargetCopy> &copy, float amax) {
  if (!slots || !std::get<bool>(*slots))
    return;
  *copy->amax = amax;
  copy->amax_given = true;
}

} // namespace

QuantizeKernel::QuantizeKernel(std::optional<DestinationSlots> row,
                               std::optional<DestinationSlots> col, int scale,
                               int rng, std::optional<ProducerSlots> producer,
                               bool keeps)
    : row(std::move(row)), col(std::move(col)), scale(scale), rng(rng),
      producer(std::move(producer)), keeps(keeps) {
  if (this->producer)
    check_producer(*this->producer);
}

void QuantizeKernel::run(const Values &values, int threads) const {
  QuantizeArguments arguments{};
  std::optional<Producer> made;
  if (producer) {
    made = producer_of(*producer, values);
    arguments.producer = &*made;
    arguments.x = made->inputs[0];
    arguments.x.data = nullptr;
  } else {
    arguments.x = values.matrix(0);
  }
  arguments.row = destination_of(row, values, arguments.x, false);
  arguments.col = destination_of(col, values, arguments.x, true);
  if (scale != kNowhere)
    arguments.scale = memory<const float>(values.address(scale));
  require_scale(arguments);
  set_random_state(arguments, rng, values);
  values.done();
  if (keeps && is_kept(arguments.x))
    run_kept(arguments, threads);
  else
    run_quantize(arguments, threads);
}

void QuantizeKernel::run_kept(QuantizeArguments arguments, int threads) const {
  const Matrix x = arguments.x;
  const auto whole = std::make_unique_for_overwrite<uint8_t[]>(
      x.rows * x.columns * item_size(x.dtype));
  const Matrix target =
      contiguous_matrix(whole.get(), x.dtype, x.rows, x.columns);
  float amax = 0;
  run_produce(target, *arguments.producer, &amax, threads);
  give_amax(row, arguments.row, amax);
  give_amax(col, arguments.col, amax);
  arguments.x = target;
  arguments.producer = nullptr;
  run_quantize(arguments, threads);
}

} // namespace steelyard
