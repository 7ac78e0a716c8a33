#include "cpu/gemm/plan.h"

#include <algorithm>
#include <cmath>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/workspace.h"

namespace steelyard {
namespace {

// Most rows and elements of a block of the output, and elements of a slab: the
// workspace should stay in the shared cache.
constexpr int64_t kBlockRows = 22 * kRowUnit;
constexpr int64_t kBlockElements = kBlockRows * kBlockRows;
constexpr int64_t kSlabElements = 1 << 20;
// If scales span more binades than this, over both operands, products of panels
// leave float32.
constexpr int kFloatBinades = 150;
// The same where few rows are lifted.
constexpr int kFewBinades = 90;
// The same of one operand in bfloat16, for which subnormal values are zero.
constexpr int kBfloatBinades = 140;

bool has_wide_scales(const GemmOperand &x) {
  return x.scale_type == ScaleType::f32 || x.scale_type == ScaleType::e8m0;
}

// Panels of other operands need no unit.
bool has_wide_range(const GemmOperand &x) {
  return has_wide_scales(x) || x.element == Element::values;
}

ScaleRange range_of(const GemmOperand &x, const KernelTable &table,
                    bool skip_zeros) {
  return has_wide_range(x) ? table.gemm_scale_range(x, skip_zeros)
                           : ScaleRange{0, 0};
}

int binades(const ScaleRange &range) {
  return std::max(range.high - range.low, 0);
}

void set_unit(GemmOperand &x, const ScaleRange &range) {
  const int exponent = range.low > range.high ? 0 : range.high - kPanelExponent;
  x.unit = std::ldexp(1.0, -exponent);
  x.factor = std::ldexp(1.0, exponent);
}

// Few rows are multiplied by columns that are decoded to value * 2^-placed.
void lift_few_rows(GemmProblem &problem) {
  GemmOperand &a = problem.a, &b = problem.b;
  const int placed = b.element == Element::e4m3 ? 120 : 112;
  const bool by_scales = has_wide_scales(b) && a.outer > kFewestRows;
  (by_scales ? b : a).unit *= std::ldexp(1.0, kFewLift);
  a.factor *= std::ldexp(1.0, -kFewLift);
  b.factor *= std::ldexp(1.0, placed);
}

// Whether all scales, which are float32, are as they should be.
template <class Test> bool all_scales(const GemmOperand &x, const Test &test) {
  const float *scales = static_cast<const float *>(x.scales);
  const int64_t side = int64_t{1} << x.outer_shift;
  for (int64_t i = 0; i < x.outer; i += side)
    for (int64_t p = 0; p < x.k; p += int64_t{1} << x.k_shift)
      if (!test(scales[(i >> x.outer_shift) * x.outer_stride +
                       (p >> x.k_shift) * x.k_stride]))
        return false;
  return true;
}

// An infinite scale makes NaN of each code that is zero, which sums do not
// show.
bool has_infinite_scale(const GemmOperand &x) {
  return x.scale_type == ScaleType::f32 &&
         !all_scales(x, [](float scale) { return !std::isinf(scale); });
}

// What rows are multiplied by FP4 columns as.
void choose_fp4_rows(const GemmOperand &a, GemmPlan &plan) {
  const bool fp4 = a.element == Element::e2m1 && !a.fold;
  const bool digits = a.element == Element::e4m3 && !a.fold && !a.k_major &&
                      a.outer <= kDigitRows && !has_infinite_scale(a);
  plan.few_rows = a.outer <= (fp4 ? kFewIntegerRows : kFewRows);
  if (fp4 || digits)
    plan.panels = Panels::integers;
}

void choose_few_rows(GemmProblem &problem, int span, GemmPlan &plan) {
  if (problem.b.element == Element::e2m1)
    return choose_fp4_rows(problem.a, plan);
  plan.few_rows = problem.a.outer <= kFewRows && span <= kFewBinades;
  if (plan.few_rows)
    lift_few_rows(problem);
}

bool is_power_of_two(float scale) {
  int exponent;
  return scale == 0 || std::frexp(scale, &exponent) == 0.5f;
}

// Whether the panels of an operand are exact in bfloat16: codes of FP4 times
// E4M3 scales are, and any codes times powers of two.
bool fits_bfloats(const GemmOperand &x, const ScaleRange &range) {
  if (x.element == Element::values || x.fold || binades(range) > kBfloatBinades)
    return false;
  if (x.scale_type == ScaleType::e4m3)
    return x.element == Element::e2m1;
  return x.scale_type != ScaleType::f32 || all_scales(x, is_power_of_two);
}

// Chooses the units of panels, or float64 where no units would do.
void choose_range(GemmProblem &problem, const KernelTable &table,
                  GemmPlan &plan) {
  GemmOperand &a = problem.a, &b = problem.b;
  ScaleRange a_range = range_of(a, table, false),
             b_range = range_of(b, table, false);
  if (binades(a_range) + binades(b_range) > kFloatBinades) {
    a_range = range_of(a, table, true);
    b_range = range_of(b, table, true);
  }
  if (binades(a_range) + binades(b_range) > kFloatBinades) {
    plan.panels = Panels::f64;
    return;
  }
  if (has_wide_range(a))
    set_unit(a, a_range);
  if (has_wide_range(b))
    set_unit(b, b_range);
  if (table.has_vectors && !b.k_major && !b.fold)
    choose_few_rows(problem, binades(a_range) + binades(b_range), plan);
  if (table.multiply_bfloats && plan.panels == Panels::f32 && !plan.few_rows &&
      fits_bfloats(a, a_range) && fits_bfloats(b, b_range))
    plan.panels = Panels::bfloats;
}

// The size of parts of at most `most`, as few and as even as can be.
int64_t even_share(int64_t size, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(size, ceil_div(size, most)), unit) * unit;
}

// Tiles small enough that every thread gets some; which ones does not change
// the result.
void choose_tiles(int64_t rows, int64_t columns, int threads, GemmPlan &plan) {
  const auto halve = [](int64_t size, int64_t unit) {
    return std::max(ceil_div(size / 2, unit) * unit, unit);
  };
  plan.tile_rows = ceil_div(rows, kRowUnit) * kRowUnit;
  plan.tile_columns = kMostTileColumns;
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const auto tiles = [&] {
    return ceil_div(rows, plan.tile_rows) *
           ceil_div(columns, plan.tile_columns);
  };
  while (tiles() < wanted && plan.tile_rows > 2 * plan.tile_columns)
    plan.tile_rows = halve(plan.tile_rows, kRowUnit);
  while (tiles() < wanted && plan.tile_columns > kColumnUnit)
    plan.tile_columns = halve(plan.tile_columns, kColumnUnit);
  while (tiles() < wanted && plan.tile_rows > kRowUnit)
    plan.tile_rows = halve(plan.tile_rows, kRowUnit);
}

void *workspace(WorkspaceUse use, int64_t elements, Panels panels) {
  const size_t width = panels == Panels::f64 ? sizeof(double) : sizeof(float);
  return thread_workspace(use, elements * width);
}

} // namespace

GemmPlan plan_panels(GemmProblem &problem, const KernelTable &table) {
  GemmPlan plan{};
  choose_range(problem, table, plan);
  return plan;
}

void plan_tiles(const GemmProblem &problem, int threads, GemmPlan &plan) {
  const int64_t M = problem.a.outer, N = problem.b.outer;
  plan.block_rows = even_share(M, kBlockRows, kRowUnit);
  plan.block_columns =
      even_share(N, kBlockElements / plan.block_rows, kColumnUnit);
  // Of the largest block, which the others use a part of.
  const int64_t rows = std::min(plan.block_rows, M),
                columns = std::min(plan.block_columns, N);
  choose_tiles(rows, columns, threads, plan);
  const int64_t panel_rows = ceil_div(rows, kRowUnit) * kRowUnit;
  const int64_t slices = std::max<int64_t>(ceil_div(problem.a.k, kSlice), 1);
  plan.slab_slices =
      std::clamp<int64_t>(kSlabElements / (panel_rows * kSlice), 1, slices);
  plan.row_panels =
      workspace(WorkspaceUse::rows, panel_rows * kRowStride * plan.slab_slices,
                plan.panels);
  plan.accumulators =
      workspace(WorkspaceUse::accumulators,
                ceil_div(rows, plan.tile_rows) * plan.tile_rows *
                    ceil_div(columns, plan.tile_columns) * plan.tile_columns,
                plan.panels);
}

} // namespace steelyard
