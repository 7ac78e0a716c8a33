// The XLA handlers of steelyard.jax: quantize, dequantize and GEMM over leading
// batch dims, on XLA's own buffers.
#include "jax/handlers.h"

#include <cstring>
#include <optional>

#include "jax/buffers.h"

namespace steelyard {
namespace {

// Where the parts of one result copy are, and where a given amax comes from.
struct CopyBuffers {
  SchemeBits scheme;
  float epsilon;
  bool columnwise;
  std::optional<ffi::AnyBuffer> codes, scales, amax;
  ffi::AnyBuffer given;

  TargetCopy item(int64_t index, size_t leading, int64_t M, int64_t N) const {
    TargetCopy copy{};
    copy.scheme = scheme;
    copy.columnwise = columnwise;
    copy.codes = bytes_of(*codes) + index * item_bytes(*codes, leading);
    copy.scales = bytes_of(*scales) + index * item_bytes(*scales, leading);
    copy.M = M;
    copy.N = N;
    copy.epsilon = epsilon;
    if (!amax)
      return copy;
    const int64_t bytes = item_bytes(*amax, leading);
    copy.amax = reinterpret_cast<float *>(bytes_of(*amax) + index * bytes);
    copy.amax_given = is_given(given);
    if (copy.amax_given)
      std::memcpy(copy.amax, bytes_of(given) + index * bytes, bytes);
    return copy;
  }
};

// Results come as codes, scales and, where the scheme has one, the amax.
std::optional<CopyBuffers> take_copy(ffi::RemainingRets results, size_t &next,
                                     int64_t scheme, float epsilon,
                                     bool columnwise, ffi::AnyBuffer given) {
  if (scheme < 0)
    return std::nullopt;
  const auto take = [&] {
    return *results.get<ffi::AnyBuffer>(next++).value();
  };
  CopyBuffers copy{
      {static_cast<int>(scheme)}, epsilon, columnwise, {}, {}, {}, given};
  copy.codes = take();
  copy.scales = take();
  if (has_amax(copy.scheme))
    copy.amax = take();
  return copy;
}

ffi::Error quantize(ffi::ThreadPool pool, ffi::AnyBuffer x,
                    ffi::AnyBuffer scale, ffi::AnyBuffer row_amax,
                    ffi::AnyBuffer col_amax, ffi::AnyBuffer rng,
                    ffi::RemainingRets results, int64_t row_scheme,
                    int64_t col_scheme, float row_epsilon, float col_epsilon) {
  const auto dims = x.dimensions();
  const size_t leading = dims.size() - 2;
  const int64_t M = dims[leading], N = dims[leading + 1];
  size_t next = 0;
  const auto row =
      take_copy(results, next, row_scheme, row_epsilon, false, row_amax);
  const auto col =
      take_copy(results, next, col_scheme, col_epsilon, true, col_amax);
  const int64_t batch = elements_before(dims, leading);
  for (int64_t index = 0; index < batch; ++index) {
    const Matrix source{bytes_of(x) + index * item_bytes(x, leading),
                        dtype_of(x.element_type()),
                        M,
                        N,
                        N,
                        1};
    std::optional<TargetCopy> copies[2];
    if (row)
      copies[0] = row->item(index, leading, M, N);
    if (col)
      copies[1] = col->item(index, leading, M, N);
    QuantizeOptions options;
    if (is_given(scale))
      options.scale = floats_of(scale) + index;
    if (is_given(rng)) {
      const RandomState state = RandomState::read(
          static_cast<uint32_t *>(rng.untyped_data()) + 4 * index);
      options.seed = state.seed;
      options.offset = state.offset;
    }
    quantize_matrix(source, copies[0] ? &*copies[0] : nullptr,
                    copies[1] ? &*copies[1] : nullptr, options,
                    static_cast<int>(pool.num_threads()));
  }
  return ffi::Error::Success();
}

// One operand's buffers; leading dims of size 1 repeat.
struct OperandBuffers {
  SchemeBits scheme;
  bool columnwise;
  int64_t M, N;
  ffi::AnyBuffer codes, scales, amax;

  StoredCopy item(int64_t index, size_t leading) const {
    StoredCopy copy{
        scheme, columnwise, bytes_of(codes), bytes_of(scales), nullptr, M, N};
    copy.codes += index * item_bytes(codes, leading);
    copy.scales += index * item_bytes(scales, leading);
    if (is_given(amax))
      copy.amax = reinterpret_cast<float *>(bytes_of(amax) +
                                            index * item_bytes(amax, leading));
    return copy;
  }

  // Which item belongs to item `index` of an output with dims `batch`.
  int64_t item_of(int64_t index, ffi::AnyBuffer::Dimensions batch,
                  size_t leading) const {
    int64_t found = 0, stride = 1;
    for (size_t i = leading; i-- > 0;) {
      const int64_t size = codes.dimensions()[i];
      if (size > 1)
        found += index % batch[i] * stride;
      index /= batch[i];
      stride *= size;
    }
    return found;
  }
};

ffi::Error dequantize(ffi::ThreadPool pool, ffi::AnyBuffer codes,
                      ffi::AnyBuffer scales, ffi::AnyBuffer amax,
                      ffi::Result<ffi::AnyBuffer> out, int64_t scheme,
                      bool columnwise) {
  const auto dims = out->dimensions();
  const size_t leading = dims.size() - 2;
  const OperandBuffers copy{{static_cast<int>(scheme)},
                            columnwise,
                            dims[leading],
                            dims[leading + 1],
                            codes,
                            scales,
                            amax};
  const int threads = static_cast<int>(pool.num_threads());
  for (int64_t index = 0; index < elements_before(dims, leading); ++index) {
    uint8_t *target = bytes_of(*out) + index * item_bytes(*out, leading);
    run_dequantize(copy.item(index, leading), target,
                   dtype_of(out->element_type()), threads);
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
  const auto dims = out->dimensions();
  const size_t leading = dims.size() - 2;
  const OperandBuffers a{{static_cast<int>(a_scheme)},
                         a_columnwise,
                         a_rows,
                         a_columns,
                         a_codes,
                         a_scales,
                         a_amax};
  const OperandBuffers b{{static_cast<int>(b_scheme)},
                         b_columnwise,
                         b_rows,
                         b_columns,
                         b_codes,
                         b_scales,
                         b_amax};
  const int64_t rows = dims[leading], columns = dims[leading + 1];
  if (rows == 0 || columns == 0)
    return ffi::Error::Success();
  for (int64_t index = 0; index < elements_before(dims, leading); ++index) {
    GemmCall call{};
    call.out = bytes_of(*out) + index * item_bytes(*out, leading);
    call.out_dtype = dtype_of(out->element_type());
    call.out_stride = columns;
    if (is_given(bias))
      call.addends[0] = {bias.untyped_data(),
                         dtype_of(bias.element_type()),
                         rows,
                         columns,
                         0,
                         1};
    run_gemm(a.item(a.item_of(index, dims, leading), leading),
             b.item(b.item_of(index, dims, leading), leading), call,
             static_cast<int>(pool.num_threads()));
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

XLA_FFI_DEFINE_HANDLER(gemm_handler, gemm,
                       ffi::Ffi::Bind()
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
                           .Attr<int64_t>("b_columns"));

std::vector<Handler> plain_handlers() {
  return {{"steelyard_quantize", quantize_handler},
          {"steelyard_dequantize", dequantize_handler},
          {"steelyard_gemm", gemm_handler}};
}

} // namespace steelyard
