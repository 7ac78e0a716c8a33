#include "cpu/operations.h"

#include <algorithm>
#include <cmath>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/gemm/operand.h"
#include "cpu/gemm/workspace.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

// Most rows and elements of a block of the output, and elements of a slab: the
// workspace should stay in the shared cache.
constexpr int64_t kBlockRows = 22 * kRowUnit;
constexpr int64_t kBlockElements = kBlockRows * kBlockRows;
constexpr int64_t kSlabElements = 1 << 20;
// More binades of scales than this, over both operands, and products of panels
// leave float32.
constexpr int kFloatBinades = 150;
// The same where few rows are lifted.
constexpr int kFewBinades = 90;

bool has_wide_scales(const GemmOperand &x) {
  return x.scale_type == ScaleType::f32 || x.scale_type == ScaleType::e8m0;
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
void lift_few(GemmCall &call) {
  const int placed = call.b.element == Element::e4m3 ? 120 : 112;
  call.few = true;
  const bool by_scales = has_wide_scales(call.b) && call.a.outer > kFewestRows;
  (by_scales ? call.b : call.a).unit *= std::ldexp(1.0, kFewLift);
  call.a.factor *= std::ldexp(1.0, -kFewLift);
  call.b.factor *= std::ldexp(1.0, placed);
}

// Chooses the units of panels, or float64 where no units would do.
void choose_range(GemmCall &call, const KernelTable &table) {
  ScaleRange a{0, 0}, b{0, 0};
  if (has_wide_scales(call.a)) {
    a = table.gemm_scale_range(call.a, false);
    b = table.gemm_scale_range(call.b, false);
    if (binades(a) + binades(b) > kFloatBinades) {
      a = table.gemm_scale_range(call.a, true);
      b = table.gemm_scale_range(call.b, true);
    }
    if (binades(a) + binades(b) > kFloatBinades) {
      call.panels = Panels::f64;
      return;
    }
    set_unit(call.a, a);
    set_unit(call.b, b);
  }
  if (table.has_avx2 && call.a.outer <= kFewRows && !call.b.k_major &&
      !call.b.fold && call.b.element != Element::e2m1 &&
      binades(a) + binades(b) <= kFewBinades)
    lift_few(call);
}

void *workspace(WorkspaceUse use, int64_t elements, Panels panels) {
  const size_t width = panels == Panels::f64 ? sizeof(double) : sizeof(float);
  return thread_workspace(use, elements * width);
}

// Tiles small enough that every thread gets some; which ones does not change
// the result.
void choose_tiles(GemmCall &call, int threads) {
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

void run_block(GemmCall &call, int threads, const KernelTable &table) {
  choose_tiles(call, threads);
  const int64_t slices = std::max<int64_t>(ceil_div(call.a.k, kSlice), 1);
  const int64_t rows = call.units() * kRowUnit;
  const int64_t slab =
      std::clamp<int64_t>(kSlabElements / (rows * kSlice), 1, slices);
  call.packed =
      workspace(WorkspaceUse::rows, rows * kRowStride * slab, call.panels);
  call.accumulators = workspace(WorkspaceUse::accumulators,
                                call.tiles_down() * call.tile_rows *
                                    call.tiles_across() * call.tile_columns,
                                call.panels);
  const bool integers = call.panels == Panels::integers;
  const auto pack = integers ? table.pack_integers : table.gemm_pack;
  const auto multiply =
      integers ? table.multiply_integers : table.gemm_multiply;
  for (int64_t slice = 0; slice < slices; slice += slab) {
    call.k = slice * kSlice;
    call.slices = std::min(slab, slices - slice);
    call.first_slab = slice == 0;
    call.last_slab = slice + call.slices == slices;
    parallel_for(call.units() * call.slices, 2, threads,
                 [&](int64_t begin, int64_t end) { pack(call, begin, end); });
    parallel_for(
        call.tiles_down() * call.tiles_across(), 1, threads,
        [&](int64_t begin, int64_t end) { multiply(call, begin, end); });
  }
}

// The size of parts of at most `most`, as few and as even as can be.
int64_t even_share(int64_t size, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(size, ceil_div(size, most)), unit) * unit;
}

void choose_panels(GemmCall &call, const KernelTable &table) {
  const bool fp4 = call.a.element == Element::e2m1;
  if (fp4 && table.has_avx2 && !call.a.fold && !call.b.fold) {
    call.panels = Panels::integers;
    call.few = call.a.outer <= kFewIntegerRows;
  } else {
    choose_range(call, table);
  }
}

} // namespace

void run_gemm(const StoredCopy &a, const StoredCopy &b, GemmCall &call,
              int threads) {
  PlannedOperand left = plan_operand(a), right = plan_operand(b);
  call.a = left.x;
  call.b = right.x;
  const KernelTable &table = kernels();
  choose_panels(call, table);
  if (call.b.packed && call.panels != Panels::integers) {
    unpack_operand(right);
    call.b = right.x;
  }
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

} // namespace steelyard
