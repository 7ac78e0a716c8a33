#include "cpu/grouped/grouped.h"

#include <cstring>

#include "cpu/gemm/packed_weight.h"

namespace steelyard {
namespace {

const void *advanced(const Matrix &x, int64_t elements) {
  return static_cast<const uint8_t *>(x.data) + elements * item_size(x.dtype);
}

int64_t scales_size(const StoredCopy &copy) {
  if (copy.scheme.family() == Family::tensor)
    return sizeof(float);
  const StoredShape stored = copy.stored();
  return copy.scale_row() * scale_rows(copy.scheme, copy.columnwise, stored);
}

// Moves a copy of one group to the next group.
void advance(StoredCopy &copy) {
  const StoredShape stored = copy.stored();
  if (copy.scheme.is_packed_weight()) {
    const auto layout =
        PackedLayout::of(copy.scheme, stored.rows, stored.columns);
    copy.codes += ceil_div(layout.size(), kPackedAlignment) * kPackedAlignment;
    return;
  }
  copy.codes += stored.rows * copy.code_row();
  copy.scales += scales_size(copy);
  if (copy.amax)
    copy.amax += amax_count(copy.scheme, stored);
}

// A static scale is one for all groups; any other is one of each.
bool has_scale_per_group(const QuantizeArguments &arguments) {
  const auto &copy = arguments.row ? arguments.row : arguments.col;
  return arguments.scale && copy && !copy->scheme.is_static();
}

// What has no bytes may have no memory.
void clear(void *data, int64_t bytes) {
  if (bytes > 0)
    std::memset(data, 0, bytes);
}

using Rows = std::variant<StoredCopy, Matrix>;

void set_rows(Rows &a, int64_t rows) {
  if (auto *copy = std::get_if<StoredCopy>(&a))
    copy->M = rows;
  else
    std::get<Matrix>(a).rows = rows;
}

void advance_rows(Rows &a) {
  if (auto *copy = std::get_if<StoredCopy>(&a))
    return advance(*copy);
  Matrix &x = std::get<Matrix>(a);
  x.data = advanced(x, x.rows * x.row_stride);
}

} // namespace

bool GroupEnds::fit(int64_t rows) const {
  int64_t start = 0;
  for (int64_t g = 0; g < count; start = ends[g++])
    if (ends[g] < start || ends[g] > rows)
      return false;
  return true;
}

void run_grouped_quantize(const QuantizeArguments &arguments,
                          const GroupEnds &ends, int64_t group_stride,
                          int threads) {
  QuantizeArguments one = arguments;
  const bool steps_scale = has_scale_per_group(arguments);
  int64_t start = 0;
  for (int64_t g = 0; g < ends.count; ++g) {
    const int64_t end = group_stride ? one.x.rows : ends.ends[g];
    if (group_stride) {
      one.x.data = advanced(arguments.x, g * group_stride);
    } else {
      one.x.data = advanced(arguments.x, start * arguments.x.row_stride);
      one.x.rows = end - start;
      start = end;
    }
    // Groups that are quantized alike draw other random bits.
    one.offset = arguments.offset + (static_cast<uint64_t>(g) << 32);
    if (steps_scale)
      one.scale = arguments.scale + g;
    for (auto *copy : {&one.row, &one.col})
      if (*copy)
        (*copy)->M = one.x.rows;
    run_quantize(one, threads);
    for (auto *copy : {&one.row, &one.col})
      if (*copy)
        advance(**copy);
  }
}

void run_grouped_gemm(const GroupedGemmArguments &arguments,
                      const GroupEnds &ends, int threads) {
  std::variant<StoredCopy, Matrix> a = arguments.a;
  StoredCopy b = arguments.b;
  Matrix out = arguments.out;
  const int64_t out_row = out.columns * item_size(out.dtype);
  auto *written = static_cast<uint8_t *>(const_cast<void *>(out.data));
  const bool both = arguments.b_is_grouped;
  int64_t start = 0;
  for (int64_t g = 0; g < ends.count; ++g) {
    const int64_t rows = ends.ends[g] - start;
    start = ends.ends[g];
    set_rows(a, rows);
    if (both)
      b.M = rows;
    else
      out.rows = rows;
    out.data = written;
    written += out.rows * out_row;
    if (rows == 0)
      clear(const_cast<void *>(out.data), out.rows * out_row);
    else if (out.columns > 0 && out.rows > 0)
      run_gemm({a, b, {out}}, threads);
    advance_rows(a);
    advance(b);
  }
  if (!both)
    clear(written, (arguments.out.rows - start) * out_row);
}

} // namespace steelyard
