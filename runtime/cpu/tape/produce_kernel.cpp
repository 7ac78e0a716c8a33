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
  const auto &[source, other] = producer.inputs;
  require(matrices < 2 ||
              (other.rows == source.rows && other.columns == source.columns),
          "both matrices of a producer must have one size");
  const int64_t columns = source.columns;
  Matrix *rows[] = {&producer.weight, &producer.bias};
  for (int i = 0; i < vectors; ++i)
    *rows[i] = values.row(first + matrices + i, 1, columns);
  producer.epsilon = epsilon;
  producer.dtype = producer.inputs[0].dtype;
  return producer;
}

Matrix result_matrix(const Producer &producer, int out, const Values &values) {
  const Tensor x = values.tensor(out);
  contiguous_memory(x);
  const Matrix target = as_matrix(x).value();
  const Matrix &source = producer.inputs[0];
  require(target.rows == source.rows && target.columns == source.columns,
          "what is produced must be as large as what it is made of");
  return target;
}

void ProduceKernel::run(const Values &values, int threads) const {
  const Producer made = producer_of(producer, values);
  const Matrix target = result_matrix(made, out, values);
  values.done();
  run_produce(target, made, nullptr, threads);
}

} // namespace steelyard
