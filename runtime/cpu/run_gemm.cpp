#include "runs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "gemm_workspace.h"
#include "kernel_table.h"
#include "thread_pool.h"

namespace steelyard {

// Most rows and elements of a block of the output, and elements of a slab: the
// workspace should stay in the shared cache.
static constexpr int64_t kBlockRows = 22 * kRowUnit;
static constexpr int64_t kBlockElements = kBlockRows * kBlockRows;
static constexpr int64_t kSlabElements = 1 << 20;
// More binades of scales than this, over both operands, and products of panels
// leave float32.
static constexpr int kFloatBinades = 150;

// An operand with what its factors point to.
struct PlannedOperand {
  GemmOperand x;
  std::vector<double> factors;
  std::vector<float> fold;
};

static void describe_scales(const StoredCopy &copy, GemmOperand &x) {
  const SchemeBits scheme = copy.scheme;
  x.outer_shift = 0;
  x.k_shift = std::countr_zero<uint64_t>(kSlice);
  x.outer_stride = x.k_stride = 1;
  switch (scheme.family()) {
  case Family::tensor:
    x.scale_type = ScaleType::none;
    return;
  case Family::block:
    x.scale_type = ScaleType::f32;
    x.outer_shift = scheme.tiled() ? 7 : 0;
    x.k_shift = 7;
    x.outer_stride = copy.scale_row() / sizeof(float);
    return;
  case Family::mx:
    x.scale_type = ScaleType::e8m0;
    x.k_shift = 5;
    (copy.columnwise ? x.k_stride : x.outer_stride) = copy.scale_row();
    return;
  case Family::nvfp4:
    x.scale_type = ScaleType::e4m3;
    x.k_shift = 4;
    x.outer_stride = copy.scale_row();
    return;
  }
}

// Levels above the block scales wait for the end, where they cost nothing; one
// that is not finite goes into the panels, for the NaN that it makes of zeros.
static void describe_second(const float *second, bool per_row, double range,
                            PlannedOperand &planned) {
  GemmOperand &x = planned.x;
  const int64_t levels = per_row ? x.outer : 1;
  const bool finite = std::all_of(second, second + levels,
                                  [](float v) { return std::isfinite(v); });
  if (!finite)
    planned.fold.assign(x.outer, 1.0f);
  for (int64_t i = 0; !finite && i < x.outer; ++i)
    if (const float level = second[per_row ? i : 0]; !std::isfinite(level))
      planned.fold[i] = level;
  if (per_row)
    for (int64_t i = 0; i < levels; ++i)
      planned.factors.push_back((std::isfinite(second[i]) ? second[i] : 1.0) /
                                range);
  else
    x.factor = (finite ? *second : 1.0) / range;
}

static PlannedOperand operand(const StoredCopy &copy) {
  const SchemeBits scheme = copy.scheme;
  const StoredShape stored = copy.stored();
  PlannedOperand planned{};
  GemmOperand &x = planned.x;
  x.codes = copy.codes;
  x.codes_stride = copy.code_row();
  x.element = scheme.element();
  x.k_major = copy.columnwise && scheme.family() == Family::mx;
  x.outer = x.k_major ? stored.columns : stored.rows;
  x.k = x.k_major ? stored.rows : stored.columns;
  x.scales = copy.scales;
  x.unit = x.factor = 1.0;
  describe_scales(copy, x);
  const bool four_over_six = scheme.four_over_six() != FourOverSix::none;
  const double e4m3_max = four_over_six ? 256.0 : 448.0;
  if (scheme.family() == Family::tensor)
    describe_second(static_cast<const float *>(x.scales), false, 1.0, planned);
  if (scheme.family() == Family::nvfp4)
    describe_second(copy.amax, scheme.row_scaled(), 6.0 * e4m3_max, planned);
  return planned;
}

static bool has_wide_scales(const GemmOperand &x) {
  return x.scale_type == ScaleType::f32 || x.scale_type == ScaleType::e8m0;
}

static int binades(const ScaleRange &range) {
  return std::max(range.high - range.low, 0);
}

static void set_unit(GemmOperand &x, const ScaleRange &range) {
  const int exponent = range.low > range.high ? 0 : range.high - kPanelExponent;
  x.unit = std::ldexp(1.0, -exponent);
  x.factor = std::ldexp(1.0, exponent);
}

// Chooses the units of panels, or float64 where no units would do.
static void choose_range(GemmCall &call, const KernelTable &table) {
  if (!has_wide_scales(call.a))
    return;
  ScaleRange a = table.gemm_scale_range(call.a, false);
  ScaleRange b = table.gemm_scale_range(call.b, false);
  if (binades(a) + binades(b) > kFloatBinades) {
    a = table.gemm_scale_range(call.a, true);
    b = table.gemm_scale_range(call.b, true);
  }
  call.wide = binades(a) + binades(b) > kFloatBinades;
  if (!call.wide) {
    set_unit(call.a, a);
    set_unit(call.b, b);
  }
}

static void *workspace(WorkspaceUse use, int64_t elements, bool wide) {
  return thread_workspace(use,
                          elements * (wide ? sizeof(double) : sizeof(float)));
}

// Tiles small enough that every thread gets some; which ones does not change
// the result.
static void choose_tiles(GemmCall &call, int threads) {
  const auto halve = [](int64_t size, int64_t unit) {
    return std::max(ceil_div(size / 2, unit) * unit, unit);
  };
  call.tile_rows = call.units() * kRowUnit;
  call.tile_columns = kMostTileColumns;
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const auto tiles = [&] { return call.tiles_down() * call.tiles_across(); };
  while (tiles() < wanted && call.tile_rows > 2 * call.tile_columns)
    call.tile_rows = halve(call.tile_rows, kRowUnit);
  while (tiles() < wanted && call.tile_columns > kColumnUnit)
    call.tile_columns = halve(call.tile_columns, kColumnUnit);
  while (tiles() < wanted && call.tile_rows > kRowUnit)
    call.tile_rows = halve(call.tile_rows, kRowUnit);
}

static void run_block(GemmCall &call, int threads, const KernelTable &table) {
  choose_tiles(call, threads);
  const int64_t slices = std::max<int64_t>(ceil_div(call.a.k, kSlice), 1);
  const int64_t rows = call.units() * kRowUnit;
  const int64_t slab =
      std::clamp<int64_t>(kSlabElements / (rows * kSlice), 1, slices);
  call.packed =
      workspace(WorkspaceUse::rows, rows * kRowStride * slab, call.wide);
  call.accumulators = workspace(WorkspaceUse::accumulators,
                                call.tiles_down() * call.tile_rows *
                                    call.tiles_across() * call.tile_columns,
                                call.wide);
  for (int64_t slice = 0; slice < slices; slice += slab) {
    call.k = slice * kSlice;
    call.slices = std::min(slab, slices - slice);
    call.first_slab = slice == 0;
    call.last_slab = slice + call.slices == slices;
    parallel_for(
        call.units() * call.slices, 2, threads,
        [&](int64_t begin, int64_t end) { table.gemm_pack(call, begin, end); });
    parallel_for(call.tiles_down() * call.tiles_across(), 1, threads,
                 [&](int64_t begin, int64_t end) {
                   table.gemm_multiply(call, begin, end);
                 });
  }
}

// The size of parts of at most `most`, as few and as even as can be.
static int64_t even_share(int64_t size, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(size, ceil_div(size, most)), unit) * unit;
}

static void run(GemmCall &call, int threads) {
  const KernelTable &table = kernels();
  choose_range(call, table);
  const int64_t M = call.a.outer, N = call.b.outer;
  const int64_t block_rows = even_share(M, kBlockRows, kRowUnit);
  const int64_t block_columns =
      even_share(N, kBlockElements / block_rows, kColumnUnit);
  for (call.row = 0; call.row < M; call.row += block_rows)
    for (call.column = 0; call.column < N; call.column += block_columns) {
      call.rows = std::min(block_rows, M - call.row);
      call.columns = std::min(block_columns, N - call.column);
      run_block(call, threads, table);
    }
}

void run_gemm(const StoredCopy &a, const StoredCopy &b, GemmCall &call,
              int threads) {
  PlannedOperand left = operand(a), right = operand(b);
  for (PlannedOperand *planned : {&left, &right}) {
    if (!planned->factors.empty())
      planned->x.factors = planned->factors.data();
    if (!planned->fold.empty())
      planned->x.fold = planned->fold.data();
  }
  call.a = left.x;
  call.b = right.x;
  run(call, threads);
}

} // namespace steelyard
