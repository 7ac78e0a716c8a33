#include "bindings.h"

#include <nanobind/stl/optional.h>

#include <bit>
#include <limits>
#include <optional>
#include <vector>

#include "amax.h"
#include "copy_arguments.h"
#include "float_environment.h"
#include "kernel_table.h"
#include "producer_arguments.h"
#include "quantize.h"
#include "thread_pool.h"
#include "tiling.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// scheme bits, epsilon, codes, scales, amax, whether the amax is given, whether
// a rowwise copy of x is made as the columnwise copy of its transpose
using CopyArguments =
    std::tuple<int, float, uintptr_t, uintptr_t, uintptr_t, bool, bool>;

struct Copy : CopyCall {
  bool amax_given;
  int64_t amax_size;

  uint32_t *amax_bits() const { return reinterpret_cast<uint32_t *>(amax); }
};

float largest(Dtype dtype) {
  constexpr float bf16_max = 0x1.fep127f, f16_max = 65504.0f;
  return dtype == Dtype::f32    ? std::numeric_limits<float>::max()
         : dtype == Dtype::bf16 ? bf16_max
                                : f16_max;
}

Copy make_copy(const CopyArguments &arguments, const Matrix &x, bool columnwise,
               uint64_t seed, uint64_t offset) {
  const auto &[bits, epsilon, codes, scales, amax, amax_given, swapped] =
      arguments;
  const SchemeBits scheme{bits};
  const StoredShape stored =
      stored_shape(scheme, columnwise, x.rows, x.columns);
  Copy copy{};
  copy.family = scheme.family();
  copy.element = scheme.element();
  copy.rule = scheme.rule();
  copy.four_over_six = scheme.four_over_six();
  copy.columnwise = columnwise;
  copy.tiled = scheme.tiled();
  copy.power_of_two = scheme.power_of_two();
  copy.rht = scheme.rht();
  copy.stochastic = scheme.stochastic();
  copy.row_scaled = scheme.row_scaled();
  copy.epsilon = epsilon;
  copy.codes = reinterpret_cast<uint8_t *>(codes);
  copy.codes_stride = codes_stride(scheme, stored);
  copy.scales = reinterpret_cast<uint8_t *>(scales);
  copy.scales_stride = scales_stride(scheme, columnwise, stored);
  copy.amax = reinterpret_cast<float *>(amax);
  copy.amax_given = amax_given;
  copy.amax_size = scheme.row_scaled() ? stored.rows : 1;
  copy.limit = largest(x.dtype);
  copy.seed = seed;
  copy.offset = offset;
  copy.random_row = swapped ? 1 : x.columns;
  copy.random_column = swapped ? stored.columns : 1;
  copy.random_copy = columnwise && !swapped;
  return copy;
}

// Where a copy's amax must be found before its codes, and where it is kept.
void request_amax(const Copy &copy, AmaxCall &call, uint32_t &tensor) {
  if (!copy.amax || copy.amax_given)
    return;
  std::fill_n(copy.amax_bits(), copy.amax_size, 0);
  if (copy.row_scaled)
    (copy.columnwise ? call.column : call.row) = copy.amax_bits();
  else if (copy.rht)
    call.transformed = copy.amax_bits();
  else
    call.tensor = &tensor;
}

bool keeps_tensor_amax(const Copy &copy) {
  return copy.amax && !copy.amax_given && !copy.row_scaled && !copy.rht;
}

// The scale of a per-tensor copy: given, or from the amax.
void set_scale(Copy &copy, const float *given) {
  if (copy.family != Family::tensor)
    return;
  const float element_max =
      copy.element == Element::e4m3 ? E4M3::max : E5M2::max;
  copy.scale = given ? *given
                     : scale_from_amax(*copy.amax, element_max, copy.epsilon,
                                       copy.power_of_two,
                                       std::numeric_limits<float>::max());
  const float inverse = 1.0f / copy.scale;
  std::memcpy(copy.scales, &inverse, sizeof inverse);
}

// The columnwise codes follow from the rowwise ones.
bool share_codes(const Copy &row, const Copy &col) {
  const bool transposable =
      row.family == Family::tensor || (row.tiled && !row.stochastic);
  const bool alike = row.family == col.family && row.element == col.element &&
                     row.tiled == col.tiled && row.rule == col.rule &&
                     row.four_over_six == col.four_over_six &&
                     row.power_of_two == col.power_of_two &&
                     row.epsilon == col.epsilon &&
                     row.stochastic == col.stochastic;
  if (!transposable || !alike)
    return false;
  if (row.family == Family::tensor)
    return std::bit_cast<uint32_t>(row.scale) ==
           std::bit_cast<uint32_t>(col.scale);
  return row.family != Family::nvfp4 || *row.amax_bits() == *col.amax_bits();
}

TileShape tile_shape(const std::optional<Copy> &row,
                     const std::optional<Copy> &col) {
  if (!col && !row->tiled)
    return TileShape::flat;
  const bool row_fits = !row || !row->tiled || row->family == Family::mx;
  const bool col_fits = !col || col->family == Family::mx;
  return row_fits && col_fits ? TileShape::band : TileShape::square;
}

class Quantization {
public:
  Quantization(const Matrix &x, Producer *producer, std::optional<Copy> row,
               std::optional<Copy> col, const float *scale, int threads)
      : x_(x), producer_(producer), row_(row), col_(col), scale_(scale),
        threads_(threads) {}

  void run() {
    FloatEnvironment environment;
    find_amaxes();
    for_each([this](Copy &copy) { set_scale(copy, scale_); });
    QuantizeCall call{x_,
                      {},
                      row_ ? &*row_ : nullptr,
                      col_ ? &*col_ : nullptr,
                      row_ && col_ && share_codes(*row_, *col_),
                      amax_on_the_way_ ? &tensor_amax_ : nullptr,
                      producer_};
    call.tiling = make_tiling(x_, tile_shape(row_, col_));
    call.tiling.staged &= !producer_;
    const KernelTable &table = kernels();
    parallel_for(
        call.tiling.count,
        tile_grain(call.tiling, producer_ && producer_->is_norm()), threads_,
        [&](int64_t begin, int64_t end) { table.quantize(call, begin, end); });
    if (amax_on_the_way_)
      keep_tensor_amax();
  }

private:
  template <class F> void for_each(const F &f) {
    if (row_)
      f(*row_);
    if (col_)
      f(*col_);
  }

  // A given scale needs no amax first: it is found while encoding, unless
  // another copy needs a pass anyway.
  void find_amaxes() {
    AmaxCall call{x_, {}, nullptr, nullptr, nullptr, nullptr, producer_};
    bool wanted = false;
    for_each([&](Copy &copy) {
      const bool later = copy.family == Family::tensor && scale_;
      wanted |= keeps_tensor_amax(copy);
      if (!later)
        request_amax(copy, call, tensor_amax_);
    });
    amax_on_the_way_ = wanted && !call.tensor;
    if (call.tensor || call.row || call.column || call.transformed)
      run_amax_pass(call);
    for_each([](Copy &copy) {
      if (copy.amax && !copy.amax_given)
        canonicalize_nan(copy.amax_bits(), copy.amax_size);
    });
    if (call.tensor)
      keep_tensor_amax();
  }

  // What a norm finds out about its rows is kept for the pass that encodes.
  void run_amax_pass(AmaxCall &call) {
    const bool is_norm = producer_ && producer_->is_norm();
    if (is_norm) {
      statistics_.resize(x_.rows);
      producer_->statistics = statistics_.data();
    }
    run_amax(call, threads_);
    if (is_norm)
      producer_->statistics_known = true;
  }

  void keep_tensor_amax() {
    canonicalize_nan(&tensor_amax_, 1);
    for_each([this](Copy &copy) {
      if (keeps_tensor_amax(copy))
        *copy.amax_bits() = tensor_amax_;
    });
  }

  const Matrix x_;
  Producer *const producer_;
  std::vector<RowStatistics> statistics_;
  std::optional<Copy> row_, col_;
  const float *const scale_;
  const int threads_;
  uint32_t tensor_amax_ = 0;
  bool amax_on_the_way_ = false;
};

} // namespace

void bind_quantize(nb::module_ &m) {
  m.def(
      "quantize",
      [](const MatrixArguments &x, const std::optional<CopyArguments> &row,
         const std::optional<CopyArguments> &col, uintptr_t scale,
         uint64_t seed, uint64_t offset, int threads,
         const std::optional<ProducerArguments> &arguments) {
        nb::gil_scoped_release release;
        const Matrix source = matrix(x);
        std::optional<Copy> copies[2];
        if (row)
          copies[0] = make_copy(*row, source, false, seed, offset);
        if (col)
          copies[1] = make_copy(*col, source, true, seed, offset);
        std::optional<Producer> producer;
        if (arguments)
          producer = producer_of(*arguments, source.dtype);
        Quantization(source, producer ? &*producer : nullptr, copies[0],
                     copies[1], reinterpret_cast<const float *>(scale), threads)
            .run();
      },
      nb::arg("x"), nb::arg("row").none(), nb::arg("col").none(),
      nb::arg("scale"), nb::arg("seed"), nb::arg("offset"), nb::arg("threads"),
      nb::arg("producer") = nb::none(),
      "Quantize a matrix, or what a producer makes, into a rowwise copy, a "
      "columnwise copy or both.");
}

} // namespace steelyard
