#include "cpu/tape/produce_kernel.h"

namespace steelyard {

void check_producer(const ProducerSlots &slots) {
  constexpr int kMostInputs = 2;
  const auto &[kind, activation, first, matrices, vectors, epsilon] = slots;
  require(kind >= 0 && kind < static_cast<int>(std::size(kProducerNames)),
          "a producer must be the number of one in producer_names");
  activation_of(activation);
  require(matrices <= kMostInputs && vectors <= kMostInputs,
          "a producer reads at most two matrices and two vectors");
}

Producer producer_of(const ProducerSlots &slots, const Values &values) {
  const auto &[kind, activation, first, matrices, vectors, epsilon] = slots;
  Producer producer{};
  producer.kind = static_cast<ProducerKind>(kind);
  producer.activation = static_cast<Activation>(activation);
  for (int i = 0; i < matrices; ++i)
    producer.inputs[i] = values.matrix(first + i);
  const int64_t columns = producer.inputs[0].columns;
  Matrix *rows[] = {&producer.weight, &producer.bias};
  for (int i = 0; i < vectors; ++i)
    *rows[i] = values.row(first + matrices + i, 1, columns);
  producer.epsilon = epsilon;
  producer.dtype = producer.inputs[0].dtype;
  return producer;
}

void ProduceKernel::run(const Values &values, int threads) const {
  const Producer made = producer_of(producer, values);
  const Matrix target = values.matrix(out);
  values.done();
  run_produce(target, made, nullptr, threads);
}

} // namespace steelyard
