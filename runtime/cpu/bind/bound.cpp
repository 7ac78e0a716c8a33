// Kernels of compiled programs, as Python calls them: each call takes its
// values as they are. Parts of quantized tensors may be addresses, everything
// else is a tensor, or a size.
#include "cpu/bind/bound.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "cpu/bind/bindings.h"
#include "cpu/tape/add_rows_kernel.h"
#include "cpu/tape/attention_backward_kernel.h"
#include "cpu/tape/attention_kernel.h"
#include "cpu/tape/batched_gemm_kernel.h"
#include "cpu/tape/columns_kernel.h"
#include "cpu/tape/concatenate_kernel.h"
#include "cpu/tape/dequantize_kernel.h"
#include "cpu/tape/gemm_kernel.h"
#include "cpu/tape/grouped_kernels.h"
#include "cpu/tape/layer_norm_kernel.h"
#include "cpu/tape/lookup_kernel.h"
#include "cpu/tape/norm_backward_kernel.h"
#include "cpu/tape/positions_kernel.h"
#include "cpu/tape/quantize_kernel.h"
#include "cpu/tape/rows_kernel.h"
#include "cpu/tape/state_kernels.h"
#include "cpu/tape/transpose_kernel.h"
#include "cpu/tape/write_rows_kernel.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

class PythonValues final : public Values {
public:
  PythonValues(const nb::args &values, const TensorReader &reader)
      : values_(values), reader_(reader) {}

  Tensor tensor(int position) const override {
    return reader_.tensor(values_[position], keep());
  }
  Matrix matrix(int position) const override {
    return reader_.matrix(values_[position], keep());
  }
  uintptr_t address(int position) const override {
    const nb::handle value = values_[position];
    return PyLong_Check(value.ptr()) ? nb::cast<uintptr_t>(value)
                                     : TensorReader::address(value);
  }
  int64_t number(int position) const override {
    return nb::cast<int64_t>(values_[position]);
  }
  void done() const override { released_.emplace(); }

private:
  // Of a tensor that must live while it is read.
  nb::object &keep() const { return kept_.emplace_back(); }

  const nb::args &values_;
  const TensorReader &reader_;
  mutable std::vector<nb::object> kept_;
  // The last: tensors are let go of with Python's lock.
  mutable std::optional<nb::gil_scoped_release> released_;
};

template <class Made, class... Slots>
BoundKernel bound(nb::object reader, Slots... slots) {
  return {std::make_shared<Made>(std::move(slots)...), reader,
          nb::cast<const TensorReader &>(reader)};
}

// `exchange`: takes a list of amaxes, and returns those of all ranks.
BoundKernel bound_update_scale(nb::object reader, bool most_recent,
                               float element_max, float epsilon,
                               bool power_of_two,
                               std::optional<nb::callable> exchange) {
  UpdateScaleKernel::Exchange ask;
  if (exchange)
    ask = [ask = *exchange](std::vector<float> &amaxes) {
      const nb::gil_scoped_acquire locked;
      amaxes = nb::cast<std::vector<float>>(ask(amaxes));
    };
  return bound<UpdateScaleKernel>(
      reader, DelayedRule{most_recent, element_max, epsilon, power_of_two},
      std::move(ask));
}

} // namespace

void BoundKernel::operator()(const nb::args &values) const {
  const int threads = reader.threads();
  kernel->run(PythonValues(values, reader), threads);
}

void bind_bound(nb::module_ &m) {
  nb::class_<TensorReader>(m, "TensorReader",
                           "Reads tensors that kernels are given.")
      .def(nb::init<nb::dict, nb::callable, nb::callable>(), nb::arg("types"),
           nb::arg("flat"), nb::arg("threads"));
  nb::class_<BoundKernel>(m, "BoundKernel",
                          "A kernel of a compiled program, with what is known "
                          "of its calls.")
      .def("__call__", &BoundKernel::operator());
  m.def("bound_attention",
        &bound<AttentionKernel, int, int, int, int, int, int, int, int, int,
               int, std::optional<float>, bool>,
        nb::arg("reader"), nb::arg("query"), nb::arg("key"), nb::arg("value"),
        nb::arg("key_scales"), nb::arg("value_scales"), nb::arg("new_key"),
        nb::arg("new_value"), nb::arg("mask"), nb::arg("out"),
        nb::arg("logsumexp"), nb::arg("scale").none(), nb::arg("causal"),
        "Attends, over keys and values or their codes.");
  m.def("bound_attention_backward",
        &bound<AttentionBackwardKernel, int, int, std::optional<float>, bool>,
        nb::arg("reader"), nb::arg("mask"), nb::arg("gradients"),
        nb::arg("scale").none(), nb::arg("causal"),
        "Makes the gradients of attention.");
  m.def("bound_amax", &bound<AmaxKernel, bool, bool>, nb::arg("reader"),
        nb::arg("rht"), nb::arg("per_row"), "Finds largest magnitudes.");
  m.def("bound_update_scale", &bound_update_scale, nb::arg("reader"),
        nb::arg("most_recent"), nb::arg("element_max"), nb::arg("epsilon"),
        nb::arg("power_of_two"), nb::arg("exchange").none(),
        "Makes the scale and history of the next step.");
  m.def("bound_advance_rng", &bound<AdvanceRngKernel>, nb::arg("reader"),
        "Makes the random state of the next backward.");
  m.def("bound_transpose",
        &bound<TransposeKernel, OperandSlots, int, int, int, int, int>,
        nb::arg("reader"), nb::arg("from"), nb::arg("codes"), nb::arg("scales"),
        nb::arg("amax"), nb::arg("first_size"), nb::arg("end_of_sizes"),
        "Makes the copy of the other usage from the codes.");
  m.def("bound_concatenate", &bound<ConcatenateKernel, int, int>,
        nb::arg("reader"), nb::arg("count"), nb::arg("dim"),
        "Puts tensors one after the other along a dim.");
  m.def("bound_lookup", &bound<LookupKernel, int, int, int>, nb::arg("reader"),
        nb::arg("table"), nb::arg("indices"), nb::arg("out"),
        "Picks rows of a table by their numbers.");
  m.def("bound_add_rows", &bound<AddRowsKernel, int, int, int, int64_t>,
        nb::arg("reader"), nb::arg("rows"), nb::arg("indices"), nb::arg("out"),
        nb::arg("padding"), "Adds rows where their numbers say.");
  m.def("bound_positions", &bound<PositionsKernel, int, int, int64_t>,
        nb::arg("reader"), nb::arg("start"), nb::arg("out"), nb::arg("offset"),
        "Counts on from a number.");
  m.def("bound_produce", &bound<ProduceKernel, ProducerSlots, int>,
        nb::arg("reader"), nb::arg("producer"), nb::arg("out"),
        "Writes what a producer makes.");
  m.def("bound_layer_norm",
        &bound<LayerNormKernel, ProducerSlots, int, int, int>,
        nb::arg("reader"), nb::arg("producer"), nb::arg("out"), nb::arg("mean"),
        nb::arg("rstd"), "A layer norm, and what its gradients need.");
  m.def("bound_norm_backward",
        &bound<NormBackwardKernel, int, int, int, int, int, int, int, int>,
        nb::arg("reader"), nb::arg("grad"), nb::arg("source"), nb::arg("mean"),
        nb::arg("rstd"), nb::arg("weight"), nb::arg("grad_source"),
        nb::arg("grad_weight"), nb::arg("grad_bias"),
        "The gradients of a layer norm.");
  m.def("row_function_names", [] {
    return std::vector<std::string>(std::begin(kRowFunctionNames),
                                    std::end(kRowFunctionNames));
  });
  m.def("bound_rows", &bound<RowsKernel, int, int, int>, nb::arg("reader"),
        nb::arg("function"), nb::arg("source"), nb::arg("out"),
        "Sums, means and softmax of rows.");
  m.def("bound_columns", &bound<ColumnsKernel, bool, int, int, int>,
        nb::arg("reader"), nb::arg("is_mean"), nb::arg("dims"),
        nb::arg("source"), nb::arg("out"), "Sums and means of columns.");
  m.def("bound_write_rows", &bound<WriteRowsKernel, int, int, int, int, int>,
        nb::arg("reader"), nb::arg("target"), nb::arg("indices"),
        nb::arg("rows"), nb::arg("out"), nb::arg("dim"),
        "Replaces entries along a dim, in place or in a copy.");
  m.def("bound_quantize",
        &bound<QuantizeKernel, std::optional<DestinationSlots>,
               std::optional<DestinationSlots>, int, int,
               std::optional<ProducerSlots>, bool>,
        nb::arg("reader"), nb::arg("row").none(), nb::arg("col").none(),
        nb::arg("scale"), nb::arg("rng"), nb::arg("producer").none(),
        nb::arg("keeps"), "Quantizes a matrix, or what a producer makes.");
  m.def("bound_gemm",
        &bound<GemmKernel, std::optional<OperandSlots>, OperandSlots, int, int,
               int, int, int, int, int>,
        nb::arg("reader"), nb::arg("lhs").none(), nb::arg("rhs"),
        nb::arg("bias"), nb::arg("residual"), nb::arg("out"),
        nb::arg("preactivation"), nb::arg("activation"), nb::arg("first_size"),
        nb::arg("end_of_sizes"), "Multiplies.");
  m.def("bound_batched_gemm",
        &bound<BatchedGemmKernel, EntrySlots, EntrySlots, int, int,
               std::optional<int64_t>>,
        nb::arg("reader"), nb::arg("lhs"), nb::arg("rhs"), nb::arg("out"),
        nb::arg("batch_dims"), nb::arg("reduced").none(),
        "Multiplies entry by entry.");
  m.def("bound_dequantize",
        &bound<DequantizeKernel, OperandSlots, int, int, int>,
        nb::arg("reader"), nb::arg("from"), nb::arg("out"),
        nb::arg("first_size"), nb::arg("end_of_sizes"), "Decodes a copy.");
  m.def("bound_grouped_quantize",
        &bound<GroupedQuantizeKernel, std::optional<DestinationSlots>,
               std::optional<DestinationSlots>, int, int, int, int64_t>,
        nb::arg("reader"), nb::arg("row").none(), nb::arg("col").none(),
        nb::arg("ends"), nb::arg("scale"), nb::arg("rng"), nb::arg("groups"),
        "Quantizes each group.");
  m.def("bound_grouped_gemm",
        &bound<GroupedGemmKernel, std::optional<OperandSlots>, OperandSlots,
               int, int, int64_t, bool, std::optional<int64_t>>,
        nb::arg("reader"), nb::arg("lhs").none(), nb::arg("rhs"),
        nb::arg("ends"), nb::arg("out"), nb::arg("groups"), nb::arg("both"),
        nb::arg("rows").none(), "One product for each group.");
}

} // namespace steelyard
