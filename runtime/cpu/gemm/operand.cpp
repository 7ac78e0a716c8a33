#include "cpu/gemm/operand.h"

#include <bit>
#include <cmath>

#include "cpu/gemm/packed_weight.h"
#include "cpu/gemm/plan.h"

namespace steelyard {
namespace {

// The copy whose array is stored: of this usage, or of the other one.
StoredCopy stored_copy(StoredCopy copy) {
  copy.columnwise = copy.columnwise != copy.scheme.borrowed();
  return copy;
}

void describe_codes(const StoredCopy &copy, GemmOperand &x) {
  const StoredCopy array = stored_copy(copy);
  const StoredShape stored = array.stored();
  const bool transposed =
      array.columnwise && copy.scheme.family() != Family::mx;
  x.codes = copy.codes;
  x.codes_stride = array.code_row();
  x.element = copy.scheme.element();
  x.k_major = copy.columnwise != transposed;
  x.outer = x.k_major ? stored.columns : stored.rows;
  x.k = x.k_major ? stored.rows : stored.columns;
}

// Scales of the other usage repeat over the tile, so its first row or column
// has them all.
void describe_mx_scales(const StoredCopy &copy, GemmOperand &x) {
  const StoredCopy array = stored_copy(copy);
  x.scale_type = ScaleType::e8m0;
  x.k_shift = 5;
  x.scale_count = array.scale_row() *
                  scale_rows(array.scheme, array.columnwise, array.stored());
  if (!copy.scheme.borrowed()) {
    (copy.columnwise ? x.k_stride : x.outer_stride) = array.scale_row();
    return;
  }
  x.outer_shift = 5;
  x.k_stride = 32 * (copy.columnwise ? array.scale_row() : 1);
  x.outer_stride = copy.columnwise ? 1 : array.scale_row();
}

void describe_scales(const StoredCopy &copy, GemmOperand &x) {
  const StoredCopy array = stored_copy(copy);
  x.scales = copy.scales;
  x.k_shift = std::countr_zero<uint64_t>(kSlice);
  x.outer_stride = x.k_stride = 1;
  switch (copy.scheme.family()) {
  case Family::tensor:
  case Family::row:
    return;
  case Family::block:
    x.scale_type = ScaleType::f32;
    x.outer_shift = copy.scheme.tiled() ? 7 : 0;
    x.k_shift = 7;
    (x.k_major ? x.k_stride : x.outer_stride) =
        array.scale_row() / sizeof(float);
    return;
  case Family::mx:
    return describe_mx_scales(copy, x);
  case Family::mxfp4:
    x.scale_type = ScaleType::e8m0;
    x.k_shift = 5;
    x.outer_stride = array.scale_row();
    x.scale_count = x.outer * x.outer_stride;
    return;
  case Family::nvfp4:
    x.scale_type = ScaleType::e4m3;
    x.k_shift = copy.scheme.wide() ? 5 : 4;
    x.outer_stride = array.scale_row();
    return;
  }
}

// Levels above the block scales wait for the end, where they cost nothing; one
// that is not finite goes into the panels, for the NaN that it makes of zeros.
template <class Level>
void describe_second(bool per_row, const Level &level, GemmOperand &x,
                     OperandMemory &memory) {
  const int64_t levels = per_row ? x.outer : 1;
  bool finite = true;
  for (int64_t i = 0; i < levels; ++i)
    finite &= std::isfinite(level(i));
  if (!finite)
    memory.fold.assign(x.outer, 1.0f);
  for (int64_t i = 0; !finite && i < x.outer; ++i)
    if (const double found = level(per_row ? i : 0); !std::isfinite(found))
      memory.fold[i] = static_cast<float>(found);
  const auto factor = [&](int64_t i) {
    const double found = level(i);
    return std::isfinite(found) ? found : 1.0;
  };
  if (per_row)
    for (int64_t i = 0; i < levels; ++i)
      memory.factors.push_back(factor(i));
  else
    x.factor = factor(0);
  x.fold = memory.fold.empty() ? nullptr : memory.fold.data();
  x.factors = memory.factors.empty() ? nullptr : memory.factors.data();
}

} // namespace

OperandMemory describe_operand(const StoredCopy &copy, GemmOperand &x) {
  const SchemeBits scheme = copy.scheme;
  OperandMemory memory;
  x.unit = x.factor = 1.0;
  describe_codes(copy, x);
  describe_scales(copy, x);
  const float *levels = copy.amax;
  if (scheme.is_packed_weight()) {
    const auto layout = PackedLayout::of(scheme, x.outer, x.k);
    const uint8_t *tail = x.codes + layout.levels();
    x.is_packed_weight = true;
    x.scales = x.codes + layout.scales();
    if (scheme.has_amax())
      levels = reinterpret_cast<const float *>(tail);
    else
      x.ranges = reinterpret_cast<const PackedRanges *>(tail);
  }
  const bool per_row = scheme.family() == Family::row;
  const auto *scales = static_cast<const float *>(x.scales);
  if (scheme.family() == Family::tensor || per_row)
    describe_second(
        per_row, [=](int64_t i) -> double { return scales[i]; }, x, memory);
  if (scheme.family() == Family::nvfp4)
    describe_second(
        scheme.row_scaled(),
        [=](int64_t i) { return scheme.multiplier(levels[i]); }, x, memory);
  return memory;
}

void describe_values(const Matrix &values, GemmOperand &x) {
  x.values = values;
  x.element = Element::values;
  x.outer = values.rows;
  x.k = values.columns;
  x.unit = x.factor = 1.0;
}

} // namespace steelyard
