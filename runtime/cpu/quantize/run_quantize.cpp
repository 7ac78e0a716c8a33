#include "cpu/operations.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <vector>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/produce/produce.h"
#include "cpu/quantize/amax.h"
#include "cpu/quantize/quantize.h"
#include "cpu/simd/float_environment.h"
#include "cpu/threads/thread_pool.h"
#include "cpu/tiles/tiling.h"

namespace steelyard {
namespace {

struct Copy : CopyCall {
  bool amax_given;
  int64_t amax_size;
  std::vector<float> rows; // row: amaxes of stored rows, then what they imply

  uint32_t *amax_bits() const { return reinterpret_cast<uint32_t *>(amax); }
};

float largest(Dtype dtype) {
  constexpr float bf16_max = 0x1.fep127f, f16_max = 65504.0f;
  return dtype == Dtype::f32    ? std::numeric_limits<float>::max()
         : dtype == Dtype::bf16 ? bf16_max
                                : f16_max;
}

// `is_swapped`: the rowwise copy of a matrix is made as the columnwise copy of
// its transpose, which x is; random bytes are those of the rowwise copy.
Copy make_copy(const TargetCopy &target, const QuantizeArguments &arguments,
               bool is_swapped) {
  const SchemeBits scheme = target.scheme;
  const Matrix &x = arguments.x;
  const StoredShape stored = target.stored();
  Copy copy{};
  copy.family = scheme.family();
  copy.element = scheme.element();
  copy.rule = scheme.rule();
  copy.four_over_six = scheme.four_over_six();
  copy.columnwise = target.columnwise;
  copy.tiled = scheme.tiled();
  copy.power_of_two = scheme.power_of_two();
  copy.rht = scheme.rht();
  copy.stochastic = scheme.stochastic();
  copy.row_scaled = scheme.row_scaled() || scheme.family() == Family::row;
  copy.wide = scheme.wide();
  copy.is_static = scheme.is_static();
  copy.is_divisor = scheme.is_divisor();
  copy.epsilon = target.epsilon;
  copy.codes = target.codes;
  copy.codes_stride = target.code_row();
  copy.scales = target.scales;
  copy.scales_stride = target.scale_row();
  copy.amax = target.amax;
  copy.amax_given = target.amax_given;
  copy.amax_size = amax_count(scheme, stored);
  if (scheme.family() == Family::row) {
    copy.rows.resize(stored.rows);
    copy.amax = copy.rows.data();
    copy.amax_given = false;
    copy.amax_size = stored.rows;
  }
  if (scheme.is_static() && scheme.family() == Family::nvfp4) {
    *copy.amax = *arguments.scale;
    copy.amax_given = true;
  }
  copy.limit = largest(x.dtype);
  copy.seed = arguments.seed;
  copy.offset = arguments.offset;
  const Place place = arguments.place.value_or(Place{0, 0, x.rows, x.columns});
  copy.random_row = is_swapped ? 1 : place.columns;
  // The transform pads the rows that it is along.
  copy.random_column = is_swapped ? ceil_div(place.rows, 16) * 16 : 1;
  copy.random_first =
      place.row * copy.random_row + place.column * copy.random_column;
  copy.random_copy = target.columnwise && !is_swapped;
  return copy;
}

// Beyond this many bytes read and written, results leave the caches before
// anyone reads them.
constexpr int64_t kStreamedBytes = 16 << 20;

bool is_streamed(const QuantizeArguments &arguments) {
  const Matrix &x = arguments.x;
  int64_t bytes = x.rows * x.columns * item_size(x.dtype);
  for (const auto *copy : {&arguments.row, &arguments.col})
    if (*copy)
      bytes += (*copy)->stored().rows * (*copy)->code_row();
  return bytes > kStreamedBytes;
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

float scale_of(const Copy &copy, float amax) {
  const float element_max =
      copy.element == Element::e4m3 ? E4M3::max : E5M2::max;
  return scale_from_amax(amax, element_max, copy.epsilon, copy.power_of_two,
                         std::numeric_limits<float>::max());
}

void set_row_scales(Copy &copy) {
  copy.bounded = true;
  for (size_t i = 0; i < copy.rows.size(); ++i) {
    copy.bounded &= copy.rows[i] <= std::numeric_limits<float>::max();
    copy.rows[i] = scale_of(copy, copy.rows[i]);
    const float inverse = 1.0f / copy.rows[i];
    std::memcpy(copy.scales + i * sizeof inverse, &inverse, sizeof inverse);
  }
  copy.row_factors = copy.rows.data();
}

// The scale of a per-tensor copy: given, or from the amax; those of rows.
void set_scale(Copy &copy, const float *given) {
  if (copy.family == Family::row)
    return set_row_scales(copy);
  if (copy.family != Family::tensor)
    return;
  copy.scale = !given           ? scale_of(copy, *copy.amax)
               : copy.is_static ? static_encode_factor(*given)
                                : *given;
  copy.bounded = !given && !copy.amax_given &&
                 *copy.amax <= std::numeric_limits<float>::max();
  const float inverse = copy.is_static ? *given : 1.0f / copy.scale;
  std::memcpy(copy.scales, &inverse, sizeof inverse);
}

// The columnwise codes follow from the rowwise ones.
bool share_codes(const Copy &row, const Copy &col) {
  const bool transposable =
      row.family == Family::tensor || (row.tiled && !row.stochastic);
  const bool alike =
      row.family == col.family && row.element == col.element &&
      row.tiled == col.tiled && row.rule == col.rule &&
      row.four_over_six == col.four_over_six &&
      row.power_of_two == col.power_of_two && row.epsilon == col.epsilon &&
      row.is_static == col.is_static && row.is_divisor == col.is_divisor &&
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
  Quantization(const QuantizeArguments &arguments, bool is_swapped, int threads)
      : x_(arguments.x), producer_(arguments.producer), scale_(arguments.scale),
        threads_(threads) {
    const bool streamed = is_streamed(arguments);
    if (arguments.row)
      row_ = make_copy(*arguments.row, arguments, is_swapped);
    if (arguments.col)
      col_ = make_copy(*arguments.col, arguments, is_swapped);
    for_each([=](Copy &copy) { copy.streamed = streamed; });
  }

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
    const KernelTable &table = kernels();
    const int64_t count = call.tiling.count;
    // What a pass for the amax read last is still in cache: begin with that.
    parallel_for(count,
                 tile_grain(call.tiling, producer_ && producer_->is_norm()),
                 threads_, [&](int64_t begin, int64_t end) {
                   if (had_amax_pass_)
                     table.quantize(call, count - end, count - begin);
                   else
                     table.quantize(call, begin, end);
                 });
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
    had_amax_pass_ = call.tensor || call.row || call.column || call.transformed;
    if (had_amax_pass_)
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

  const Matrix &x_;
  Producer *const producer_;
  std::vector<RowStatistics> statistics_;
  std::optional<Copy> row_, col_;
  const float *const scale_;
  const int threads_;
  uint32_t tensor_amax_ = 0;
  bool amax_on_the_way_ = false, had_amax_pass_ = false;
};

// The transform goes down columns, so the rowwise copy of x is made as the
// columnwise copy of its transpose.
void quantize_transformed_rows(const QuantizeArguments &arguments,
                               int threads) {
  QuantizeArguments swapped = arguments;
  swapped.x = transposed(arguments.x);
  swapped.row.reset();
  swapped.col = arguments.row;
  swapped.col->columnwise = true;
  swapped.col->M = swapped.x.rows;
  swapped.col->N = swapped.x.columns;
  if (const auto place = arguments.place)
    swapped.place =
        Place{place->column, place->row, place->columns, place->rows};
  Quantization(swapped, true, threads).run();
}

} // namespace

void run_quantize(const QuantizeArguments &arguments, int threads) {
  if (!arguments.row || !arguments.row->scheme.rht())
    return Quantization(arguments, false, threads).run();
  quantize_transformed_rows(arguments, threads);
  if (!arguments.col)
    return;
  QuantizeArguments rest = arguments;
  rest.row.reset();
  Quantization(rest, false, threads).run();
}

} // namespace steelyard
