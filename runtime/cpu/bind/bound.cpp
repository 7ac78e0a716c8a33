// Kernels of compiled programs: what a program knows of a call is bound once,
// and each call takes its values as they are. Parts of quantized tensors are
// addresses among them, everything else is a tensor, or a size.
#include <memory>

#include "cpu/bind/bindings.h"
#include "cpu/bind/tensors.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// A position among the values of a call, or this.
constexpr int kNone = -1;

uintptr_t address_at(const nb::args &values, int position) {
  return position == kNone ? 0 : nb::cast<uintptr_t>(values[position]);
}

// scheme bits, epsilon, positions of codes, scales and amax, and whether that
// is the amax of the whole tensor as it is
using DestinationSlots = std::tuple<int, float, int, int, int, bool>;

std::optional<TargetCopy>
destination_of(const std::optional<DestinationSlots> &slots,
               const nb::args &values, const Matrix &x, bool columnwise) {
  if (!slots)
    return std::nullopt;
  const auto &[bits, epsilon, codes, scales, amax, is_plain] = *slots;
  const TargetArguments arguments{bits,
                                  epsilon,
                                  address_at(values, codes),
                                  address_at(values, scales),
                                  address_at(values, amax),
                                  false};
  return target_of(arguments, x, columnwise);
}

// kind, activation, position of the first input, how many inputs are matrices,
// how many are vectors, epsilon
using ProducerSlots = std::tuple<int, int, int, int, int, double>;

constexpr int kMostInputs = 2;

// The producer of a call; `kept` has the tensors that it reads.
Producer producer_of(const ProducerSlots &slots, const TensorReader &reader,
                     const nb::args &values, nb::object *kept) {
  const auto &[kind, activation, first, matrices, vectors, epsilon] = slots;
  Producer producer{};
  producer.kind = static_cast<ProducerKind>(kind);
  producer.activation = static_cast<Activation>(activation);
  for (int i = 0; i < matrices; ++i)
    producer.inputs[i] = reader.matrix(values[first + i], kept[i]);
  const int64_t columns = producer.inputs[0].columns;
  Matrix *rows[] = {&producer.weight, &producer.bias};
  for (int i = 0; i < vectors; ++i)
    *rows[i] = reader.row(values[first + matrices + i], 1, columns);
  producer.epsilon = epsilon;
  producer.dtype = producer.inputs[0].dtype;
  return producer;
}

// Exponentials cost more than memory, unless that is new: an allocator gives
// large blocks back each time.
bool is_kept(const Matrix &x) {
  constexpr int64_t kReusedBytes = int64_t{32} << 20;
  return x.dtype != Dtype::f32 || x.rows * x.columns * 4 <= kReusedBytes;
}

struct BoundQuantize {
  nb::object owner; // of the reader
  const TensorReader &reader;
  std::optional<DestinationSlots> row, col;
  int scale, rng;
  std::optional<ProducerSlots> producer;
  bool keeps; // what is produced is computed once, then read for its amax

  void operator()(const nb::args &values) const {
    nb::object kept[kMostInputs];
    QuantizeArguments arguments{};
    std::optional<Producer> made;
    if (producer) {
      made = producer_of(*producer, reader, values, kept);
      arguments.producer = &*made;
      arguments.x = made->inputs[0];
      arguments.x.data = nullptr;
    } else {
      arguments.x = reader.matrix(values[0], kept[0]);
    }
    arguments.row = destination_of(row, values, arguments.x, false);
    arguments.col = destination_of(col, values, arguments.x, true);
    if (scale != kNone)
      arguments.scale =
          memory<const float>(TensorReader::address(values[scale]));
    require_scale(arguments);
    if (rng != kNone) {
      const auto *state =
          memory<const uint64_t>(TensorReader::address(values[rng]));
      arguments.seed = state[0];
      arguments.offset = state[1];
    }
    const int threads = reader.threads();
    nb::gil_scoped_release release;
    if (keeps && is_kept(arguments.x))
      run_kept(arguments, threads);
    else
      run_quantize(arguments, threads);
  }

  void run_kept(QuantizeArguments arguments, int threads) const {
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

  static void give_amax(const std::optional<DestinationSlots> &slots,
                        std::optional<TargetCopy> &copy, float amax) {
    if (!slots || !std::get<bool>(*slots))
      return;
    *copy->amax = amax;
    copy->amax_given = true;
  }
};

// scheme bits, columnwise, positions of codes, scales and amax, rows as far as
// they are known, whether the sizes of a call are factors of them, columns
using OperandSlots =
    std::tuple<int, bool, int, int, int, int64_t, bool, int64_t>;

StoredCopy operand_of(const OperandSlots &slots, const nb::args &values,
                      int64_t sizes) {
  const auto &[bits, columnwise, codes, scales, amax, known, varies, columns] =
      slots;
  return copy_of({bits, columnwise, address_at(values, codes),
                  address_at(values, scales), address_at(values, amax),
                  varies ? known * sizes : known, columns});
}

struct BoundGemm {
  nb::object owner; // of the reader
  const TensorReader &reader;
  std::optional<OperandSlots> lhs; // none: the first value is a matrix
  OperandSlots rhs;
  int bias, residual, out, preactivation, activation;
  int first_size, end_of_sizes;

  void operator()(const nb::args &values) const {
    nb::object kept[4];
    const Matrix target = reader.matrix(values[out], kept[0]);
    if (is_empty(target.rows, target.columns))
      return;
    int64_t sizes = 1;
    for (int i = first_size; i < end_of_sizes; ++i)
      sizes *= nb::cast<int64_t>(values[i]);
    GemmArguments arguments{Matrix{}, operand_of(rhs, values, sizes),
                            GemmResult{target, {}, {}}};
    if (lhs)
      arguments.a = operand_of(*lhs, values, sizes);
    else
      arguments.a = reader.matrix(values[0], kept[1]);
    GemmResult &result = arguments.result;
    if (bias != kNone)
      result.bias = reader.row(values[bias], target.rows, target.columns);
    const bool has_epilogue = activation > 0 || preactivation != kNone;
    if (residual != kNone)
      (has_epilogue ? result.residual : result.accumulate) =
          reader.matrix(values[residual], kept[2]);
    if (has_epilogue)
      result.epilogue = activation_of(activation);
    if (preactivation != kNone)
      result.preactivation = reader.matrix(values[preactivation], kept[3]);
    const int threads = reader.threads();
    nb::gil_scoped_release release;
    run_gemm(arguments, threads);
  }
};

template <class Bound> nb::object function_of(Bound bound) {
  return nb::cpp_function(
      [bound = std::move(bound)](const nb::args &values) { bound(values); });
}

} // namespace

void bind_bound(nb::module_ &m) {
  nb::class_<TensorReader>(m, "TensorReader",
                           "Reads tensors that kernels are given.")
      .def(nb::init<nb::dict, nb::callable, nb::callable>(), nb::arg("dtypes"),
           nb::arg("flat"), nb::arg("threads"));
  m.def(
      "bound_quantize",
      [](nb::object reader, std::optional<DestinationSlots> row,
         std::optional<DestinationSlots> col, int scale, int rng,
         std::optional<ProducerSlots> producer, bool keeps) {
        if (producer)
          require(std::get<3>(*producer) <= kMostInputs &&
                      std::get<4>(*producer) <= kMostInputs,
                  "a producer reads at most two matrices and two vectors");
        return function_of(BoundQuantize{
            reader, nb::cast<const TensorReader &>(reader), std::move(row),
            std::move(col), scale, rng, std::move(producer), keeps});
      },
      nb::arg("reader"), nb::arg("row").none(), nb::arg("col").none(),
      nb::arg("scale"), nb::arg("rng"), nb::arg("producer").none(),
      nb::arg("keeps"),
      "A function of the values of a call that quantizes a matrix, or what a "
      "producer makes.");
  m.def(
      "bound_gemm",
      [](nb::object reader, std::optional<OperandSlots> lhs, OperandSlots rhs,
         int bias, int residual, int out, int preactivation, int activation,
         int first_size, int end_of_sizes) {
        return function_of(
            BoundGemm{reader, nb::cast<const TensorReader &>(reader),
                      std::move(lhs), std::move(rhs), bias, residual, out,
                      preactivation, activation, first_size, end_of_sizes});
      },
      nb::arg("reader"), nb::arg("lhs").none(), nb::arg("rhs"), nb::arg("bias"),
      nb::arg("residual"), nb::arg("out"), nb::arg("preactivation"),
      nb::arg("activation"), nb::arg("first_size"), nb::arg("end_of_sizes"),
      "A function of the values of a call that multiplies.");
}

} // namespace steelyard
