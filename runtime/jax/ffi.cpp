// The XLA handlers of steelyard.jax: quantize, dequantize and GEMM over leading
// batch dims, on XLA's own buffers.
#include "jax/handlers.h"

#include <algorithm>

#include "cpu/gemm/packed_weight.h"
#include "jax/buffers.h"

namespace steelyard {
namespace {

ffi::Error quantize(ffi::ThreadPool pool, ffi::AnyBuffer x,
                    ffi::AnyBuffer scale, ffi::AnyBuffer row_amax,
                    ffi::AnyBuffer col_amax, ffi::AnyBuffer rng,
                    ffi::RemainingRets results, int64_t row_scheme,
                    int64_t col_scheme, float row_epsilon, float col_epsilon) {
  const auto dims = x.dimensions();
  const size_t leading = dims.size() - 2;
  const int64_t M = dims[leading], N = dims[leading + 1];
  size_t next = 0;
  const auto row = take_target(results, next, row_scheme, false, M, N,
                               row_epsilon, row_amax);
  const auto col =
      take_target(results, next, col_scheme, true, M, N, col_epsilon, col_amax);
  const int64_t batch = elements_before(dims, leading);
  for (int64_t index = 0; index < batch; ++index) {
    QuantizeArguments arguments{
        contiguous_matrix(bytes_of(x) + index * item_bytes(x, leading),
                          dtype_of(x.element_type()), M, N)};
    if (row)
      arguments.row = row->item(index, leading);
    if (col)
      arguments.col = col->item(index, leading);
    if (is_given(scale))
      arguments.scale = floats_of(scale) + index;
    if (is_given(rng)) {
      const int64_t count = rng.dimensions().back();
      const uint32_t *words =
          static_cast<uint32_t *>(rng.untyped_data()) + count * index;
      const RandomState state = RandomState::read(words);
      arguments.seed = state.seed;
      arguments.offset = state.offset;
      arguments.place = place_of(words, count);
    }
    run_quantize(arguments, static_cast<int>(pool.num_threads()));
  }
  return ffi::Error::Success();
}

ffi::Error dequantize(ffi::ThreadPool pool, ffi::AnyBuffer codes,
                      ffi::AnyBuffer scales, ffi::AnyBuffer amax,
                      ffi::Result<ffi::AnyBuffer> out, int64_t scheme,
                      bool columnwise) {
  const auto dims = out->dimensions();
  const size_t leading = dims.size() - 2;
  const CopyBuffers copy =
      operand_buffers(scheme, columnwise, dims[leading], dims[leading + 1],
                      codes, scales, amax);
  const int threads = static_cast<int>(pool.num_threads());
  for (int64_t index = 0; index < elements_before(dims, leading); ++index) {
    uint8_t *target = bytes_of(*out) + index * item_bytes(*out, leading);
    run_dequantize(copy.item(index, leading), target,
                   dtype_of(out->element_type()), threads);
  }
  return ffi::Error::Success();
}

// An operand of a GEMM. Its first dim may be that of a stack, of which it is
// one part.
struct Operand {
  CopyBuffers copy;
  std::optional<int64_t> part{};

  size_t first() const { return part ? 1 : 0; }
};

// What belongs to item `index` of an output with dims `batch`: leading dims of
// size 1 repeat.
StoredCopy item_of(const Operand &operand, int64_t index,
                   ffi::AnyBuffer::Dimensions batch, size_t leading) {
  int64_t found = 0, stride = 1;
  for (size_t i = leading; i-- > 0;) {
    const int64_t size = operand.copy.codes.dimensions()[operand.first() + i];
    if (size > 1)
      found += index % batch[i] * stride;
    index /= batch[i];
    stride *= size;
  }
  found += operand.part.value_or(0) * stride;
  return operand.copy.item(found, operand.first() + leading);
}

ffi::Error multiply(int threads, const Operand &a, const Operand &b,
                    const ffi::AnyBuffer *bias, ffi::AnyBuffer out) {
  const auto dims = out.dimensions();
  const size_t leading = dims.size() - 2;
  const int64_t rows = dims[leading], columns = dims[leading + 1];
  if (rows == 0 || columns == 0)
    return ffi::Error::Success();
  for (int64_t index = 0; index < elements_before(dims, leading); ++index) {
    GemmArguments arguments{
        item_of(a, index, dims, leading),
        item_of(b, index, dims, leading),
        {contiguous_matrix(bytes_of(out) + index * item_bytes(out, leading),
                           dtype_of(out.element_type()), rows, columns)}};
    if (bias)
      arguments.result.bias = repeated_row(
          bias->untyped_data(), dtype_of(bias->element_type()), rows, columns);
    run_gemm(arguments, threads);
  }
  return ffi::Error::Success();
}

ffi::Error gemm(ffi::ThreadPool pool, ffi::AnyBuffer a_codes,
                ffi::AnyBuffer a_scales, ffi::AnyBuffer a_amax,
                ffi::AnyBuffer b_codes, ffi::AnyBuffer b_scales,
                ffi::AnyBuffer b_amax, ffi::AnyBuffer bias,
                ffi::Result<ffi::AnyBuffer> out, int64_t a_scheme,
                bool a_columnwise, int64_t a_rows, int64_t a_columns,
                int64_t b_scheme, bool b_columnwise, int64_t b_rows,
                int64_t b_columns) {
  const CopyBuffers a = operand_buffers(a_scheme, a_columnwise, a_rows,
                                        a_columns, a_codes, a_scales, a_amax);
  const CopyBuffers b = operand_buffers(b_scheme, b_columnwise, b_rows,
                                        b_columns, b_codes, b_scales, b_amax);
  return multiply(static_cast<int>(pool.num_threads()), {a}, {b},
                  is_given(bias) ? &bias : nullptr, *out);
}

// The same with a part of a stack as its right operand, read where it lies.
ffi::Error stacked_gemm(ffi::ThreadPool pool, ffi::AnyBuffer a_codes,
                        ffi::AnyBuffer a_scales, ffi::AnyBuffer a_amax,
                        ffi::AnyBuffer b_codes, ffi::AnyBuffer b_scales,
                        ffi::AnyBuffer b_amax, ffi::AnyBuffer part,
                        ffi::Result<ffi::AnyBuffer> out, int64_t a_scheme,
                        bool a_columnwise, int64_t a_rows, int64_t a_columns,
                        int64_t b_scheme, bool b_columnwise, int64_t b_rows,
                        int64_t b_columns) {
  const CopyBuffers a = operand_buffers(a_scheme, a_columnwise, a_rows,
                                        a_columns, a_codes, a_scales, a_amax);
  const CopyBuffers b = operand_buffers(b_scheme, b_columnwise, b_rows,
                                        b_columns, b_codes, b_scales, b_amax);
  // Like a slice of XLA's, no number leads out of the stack.
  const int64_t number =
      std::clamp<int64_t>(*static_cast<int32_t *>(part.untyped_data()), 0,
                          b_codes.dimensions()[0] - 1);
  return multiply(static_cast<int>(pool.num_threads()), {a}, {b, number},
                  nullptr, *out);
}

// A compact FP4 copy of (columns, k), in the layout that GEMMs read fastest.
ffi::Error pack(ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                ffi::AnyBuffer amax, ffi::Result<ffi::AnyBuffer> packed,
                int64_t scheme, int64_t columns, int64_t k) {
  const size_t leading = packed->dimensions().size() - 1;
  const int64_t batch = elements_before(packed->dimensions(), leading);
  for (int64_t index = 0; index < batch; ++index) {
    const CompactWeight weight{
        {static_cast<int>(scheme)},
        bytes_of(codes) + index * item_bytes(codes, leading),
        bytes_of(scales) + index * item_bytes(scales, leading),
        is_given(amax) ? floats_of(amax) +
                             index * elements_after(amax.dimensions(), leading)
                       : nullptr,
        columns,
        k};
    pack_weight(weight,
                bytes_of(*packed) + index * item_bytes(*packed, leading));
  }
  return ffi::Error::Success();
}

} // namespace

XLA_FFI_DEFINE_HANDLER(quantize_handler, quantize,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
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

XLA_FFI_DEFINE_HANDLER(dequantize_handler, dequantize,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("scheme")
                           .Attr<bool>("columnwise"));

// The parts of two operands, what is beside them, and how the operands are
// quantized.
static auto product_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
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
      .Attr<int64_t>("b_columns");
}

XLA_FFI_DEFINE_HANDLER(gemm_handler, gemm, product_binding());

XLA_FFI_DEFINE_HANDLER(stacked_gemm_handler, stacked_gemm, product_binding());

XLA_FFI_DEFINE_HANDLER(pack_handler, pack,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("scheme")
                           .Attr<int64_t>("columns")
                           .Attr<int64_t>("k"));

std::vector<Handler> plain_handlers() {
  return {{"steelyard_pack", pack_handler},
          {"steelyard_quantize", quantize_handler},
          {"steelyard_dequantize", dequantize_handler},
          {"steelyard_gemm", gemm_handler},
          {"steelyard_stacked_gemm", stacked_gemm_handler}};
}

} // namespace steelyard
