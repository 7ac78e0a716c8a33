// Handlers for groups of rows: the rows of a matrix belong to groups, one after
// another, whose sizes are known when the program runs.
//
// Rows lie where they are in the matrix. Blocks along the rows never span two
// groups: the blocks of side s of group g begin at block start / s + g, so that
// their places follow from the start alone. FP4 codes along the rows, two a
// byte, begin at their first block.
#include "jax/handlers.h"

#include <cstring>
#include <optional>

#include "jax/buffers.h"

namespace steelyard {
namespace {

struct Group {
  int64_t index, start, size;
};

struct Groups {
  int64_t total; // rows of the whole matrix
  int64_t count;
  const int32_t *sizes;

  bool fits() const {
    int64_t rows = 0;
    for (int64_t g = 0; g < count; ++g) {
      if (sizes[g] < 0)
        return false;
      rows += sizes[g];
    }
    return rows <= total;
  }

  // Blocks of a side that all groups may need.
  int64_t blocks(int64_t side) const { return total / side + count; }

  template <class F> void for_each(const F &f) const {
    int64_t start = 0;
    for (int64_t g = 0; g < count; start += sizes[g++])
      f(Group{g, start, sizes[g]});
  }
};

ffi::Error too_many_rows() {
  return ffi::Error::InvalidArgument(
      "group_sizes must not be negative and must sum to at most the rows of x");
}

// Moves a copy of the whole matrix to one group: its memory, strides and M.
void place(StoredCopy &copy, const Groups &groups, const Group &group) {
  const SchemeBits scheme = copy.scheme;
  const Family family = scheme.family();
  const bool transposed = copy.columnwise && family != Family::mx;
  const int64_t code_row = copy.code_row(), scale_row = copy.scale_row();
  const int64_t side = scheme.block_side();
  const int64_t block = group.start / side + group.index;
  copy.M = group.size;
  if (family == Family::tensor)
    copy.scales += group.index * sizeof(float);
  if (!transposed) {
    copy.codes += group.start * code_row;
    const bool along_rows =
        copy.columnwise || (family == Family::block && scheme.tiled());
    if (family != Family::tensor)
      copy.scales += (along_rows ? block : group.start) * scale_row;
  } else {
    const bool in_pairs = family == Family::nvfp4;
    copy.codes_stride =
        in_pairs ? groups.blocks(side) * side / 2 : groups.total;
    copy.codes += in_pairs ? block * side / 2 : group.start;
    const int64_t width = family == Family::block ? sizeof(float) : 1;
    if (family != Family::tensor) {
      copy.scales_stride = groups.blocks(side) * width;
      copy.scales += block * width;
    }
  }
  if (copy.amax)
    copy.amax += !scheme.row_scaled() ? group.index
                 : copy.columnwise    ? group.index * copy.N
                                      : group.start;
}

// The whole copy, before it is made: what no group owns is zero.
std::optional<TargetCopy>
clear_target(const std::optional<TargetBuffers> &target) {
  if (!target)
    return std::nullopt;
  const CopyBuffers &parts = target->parts;
  std::memset(parts.codes.untyped_data(), 0, parts.codes.size_bytes());
  std::memset(parts.scales.untyped_data(), 0, parts.scales.size_bytes());
  if (parts.amax)
    std::memset(parts.amax->untyped_data(), 0, parts.amax->size_bytes());
  return target->item(0, 0);
}

ffi::Error grouped_quantize(ffi::ThreadPool pool, ffi::AnyBuffer x,
                            ffi::AnyBuffer sizes, ffi::AnyBuffer scale,
                            ffi::AnyBuffer row_amax, ffi::AnyBuffer col_amax,
                            ffi::AnyBuffer rng, ffi::RemainingRets results,
                            int64_t row_scheme, int64_t col_scheme,
                            float row_epsilon, float col_epsilon) {
  const int64_t M = x.dimensions()[0], N = x.dimensions()[1];
  const Groups groups{M, static_cast<int64_t>(sizes.element_count()),
                      static_cast<const int32_t *>(sizes.untyped_data())};
  if (!groups.fits())
    return too_many_rows();
  size_t next = 0;
  const auto row = clear_target(take_target(results, next, row_scheme, false, M,
                                            N, row_epsilon, row_amax));
  const auto col = clear_target(take_target(results, next, col_scheme, true, M,
                                            N, col_epsilon, col_amax));
  groups.for_each([&](const Group &group) {
    const int64_t width = ffi::ByteWidth(x.element_type());
    QuantizeArguments arguments{
        contiguous_matrix(bytes_of(x) + group.start * N * width,
                          dtype_of(x.element_type()), group.size, N)};
    if (row)
      place(arguments.row.emplace(*row), groups, group);
    if (col)
      place(arguments.col.emplace(*col), groups, group);
    if (is_given(scale))
      arguments.scale = floats_of(scale) + group.index;
    if (is_given(rng)) {
      const RandomState state =
          RandomState::read(static_cast<uint32_t *>(rng.untyped_data()));
      arguments.seed = state.seed;
      arguments.offset =
          state.offset + (static_cast<uint64_t>(group.index) << 32);
    }
    run_quantize(arguments, static_cast<int>(pool.num_threads()));
  });
  return ffi::Error::Success();
}

ffi::Error grouped_dequantize(ffi::ThreadPool pool, ffi::AnyBuffer codes,
                              ffi::AnyBuffer scales, ffi::AnyBuffer amax,
                              ffi::AnyBuffer sizes,
                              ffi::Result<ffi::AnyBuffer> out, int64_t scheme,
                              bool columnwise) {
  const int64_t M = out->dimensions()[0], N = out->dimensions()[1];
  const Groups groups{M, static_cast<int64_t>(sizes.element_count()),
                      static_cast<const int32_t *>(sizes.untyped_data())};
  if (!groups.fits())
    return too_many_rows();
  std::memset(out->untyped_data(), 0, out->size_bytes());
  const CopyBuffers whole =
      operand_buffers(scheme, columnwise, M, N, codes, scales, amax);
  groups.for_each([&](const Group &group) {
    StoredCopy copy = whole.item(0, 0);
    place(copy, groups, group);
    run_dequantize(copy, bytes_of(*out) + group.start * item_bytes(*out, 1),
                   dtype_of(out->element_type()),
                   static_cast<int>(pool.num_threads()));
  });
  return ffi::Error::Success();
}

// The operand of a group: rows of a grouped copy, or an item of a batched one.
StoredCopy operand_of(const CopyBuffers &operand, bool grouped,
                      const Groups &groups, const Group &group) {
  if (!grouped)
    return operand.item(group.index, 1);
  StoredCopy copy = operand.item(0, 0);
  place(copy, groups, group);
  return copy;
}

// One product per group. Operand `a` is grouped; if `b` is too the groups are
// what is reduced over, and the output has an item for each.
ffi::Error grouped_gemm(ffi::ThreadPool pool, ffi::AnyBuffer a_codes,
                        ffi::AnyBuffer a_scales, ffi::AnyBuffer a_amax,
                        ffi::AnyBuffer b_codes, ffi::AnyBuffer b_scales,
                        ffi::AnyBuffer b_amax, ffi::AnyBuffer sizes,
                        ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> out,
                        int64_t a_scheme, bool a_columnwise, int64_t a_rows,
                        int64_t a_columns, int64_t b_scheme, bool b_columnwise,
                        int64_t b_rows, int64_t b_columns) {
  const bool both = out->dimensions().size() == 3;
  const Groups groups{a_rows, static_cast<int64_t>(sizes.element_count()),
                      static_cast<const int32_t *>(sizes.untyped_data())};
  if (!groups.fits())
    return too_many_rows();
  const int64_t columns = out->dimensions().back();
  std::memset(out->untyped_data(), 0, out->size_bytes());
  const CopyBuffers a = operand_buffers(a_scheme, a_columnwise, a_rows,
                                        a_columns, a_codes, a_scales, a_amax);
  const CopyBuffers b = operand_buffers(b_scheme, b_columnwise, b_rows,
                                        b_columns, b_codes, b_scales, b_amax);
  groups.for_each([&](const Group &group) {
    if (out->element_count() == 0 || group.size == 0)
      return;
    const int64_t item = both ? group.index : group.start;
    const int64_t rows = both ? out->dimensions()[1] : group.size;
    GemmArguments arguments{
        operand_of(a, true, groups, group),
        operand_of(b, both, groups, group),
        {contiguous_matrix(bytes_of(*out) + item * item_bytes(*out, 1),
                           dtype_of(out->element_type()), rows, columns)}};
    if (is_given(bias))
      arguments.result.bias =
          repeated_row(bytes_of(bias) + group.index * item_bytes(bias, 1),
                       dtype_of(bias.element_type()), rows, columns);
    run_gemm(arguments, static_cast<int>(pool.num_threads()));
  });
  return ffi::Error::Success();
}

} // namespace

XLA_FFI_DEFINE_HANDLER(grouped_quantize_handler, grouped_quantize,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attr<int64_t>("row_scheme")
                           .Attr<int64_t>("col_scheme")
                           .Attr<float>("row_epsilon")
                           .Attr<float>("col_epsilon"));

XLA_FFI_DEFINE_HANDLER(grouped_dequantize_handler, grouped_dequantize,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("scheme")
                           .Attr<bool>("columnwise"));

XLA_FFI_DEFINE_HANDLER(grouped_gemm_handler, grouped_gemm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("a_scheme")
                           .Attr<bool>("a_columnwise")
                           .Attr<int64_t>("a_rows")
                           .Attr<int64_t>("a_columns")
                           .Attr<int64_t>("b_scheme")
                           .Attr<bool>("b_columnwise")
                           .Attr<int64_t>("b_rows")
                           .Attr<int64_t>("b_columns"));

std::vector<Handler> grouped_handlers() {
  return {{"steelyard_grouped_quantize", grouped_quantize_handler},
          {"steelyard_grouped_dequantize", grouped_dequantize_handler},
          {"steelyard_grouped_gemm", grouped_gemm_handler}};
}

} // namespace steelyard
