// XLA's buffers as the memory that operations take. Python has checked every
// dtype and shape when the program was traced.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "cpu/operations.h"
#include "xla/ffi/api/ffi.h"

namespace steelyard {

namespace ffi = ::xla::ffi;

inline bool is_given(const ffi::AnyBuffer &buffer) {
  return buffer.element_count() > 0;
}

// Elements of the last dims, all but the first `leading` ones.
inline int64_t elements_after(ffi::AnyBuffer::Dimensions dims, size_t leading) {
  int64_t count = 1;
  for (size_t i = leading; i < dims.size(); ++i)
    count *= dims[i];
  return count;
}

inline int64_t elements_before(ffi::AnyBuffer::Dimensions dims, size_t end) {
  int64_t count = 1;
  for (size_t i = 0; i < end; ++i)
    count *= dims[i];
  return count;
}

inline Dtype dtype_of(ffi::DataType type) {
  return type == ffi::DataType::F32    ? Dtype::f32
         : type == ffi::DataType::BF16 ? Dtype::bf16
                                       : Dtype::f16;
}

inline uint8_t *bytes_of(const ffi::AnyBuffer &buffer) {
  return static_cast<uint8_t *>(buffer.untyped_data());
}

inline float *floats_of(const ffi::AnyBuffer &buffer) {
  return static_cast<float *>(buffer.untyped_data());
}

// Bytes of one item of a buffer whose first `leading` dims count items.
inline int64_t item_bytes(const ffi::AnyBuffer &buffer, size_t leading) {
  return elements_after(buffer.dimensions(), leading) *
         ffi::ByteWidth(buffer.element_type());
}

// Seed and offset, each two 32-bit words, the low one first.
struct RandomState {
  uint64_t seed = 0, offset = 0;

  static RandomState read(const uint32_t *words) {
    return {words[0] | uint64_t{words[1]} << 32,
            words[2] | uint64_t{words[3]} << 32};
  }
};

// After seed and offset there may be the place of the matrix in a whole one.
inline std::optional<Place> place_of(const uint32_t *words, int64_t count) {
  if (count == 4)
    return std::nullopt;
  return Place{words[4], words[5], words[6], words[7]};
}

// The parts of one copy, and which of them a scheme has.
struct CopyBuffers {
  SchemeBits scheme;
  bool columnwise;
  int64_t M, N;
  ffi::AnyBuffer codes, scales;
  std::optional<ffi::AnyBuffer> amax;

  // Item `index` of buffers whose first `leading` dims count items.
  StoredCopy item(int64_t index, size_t leading) const {
    StoredCopy copy{scheme, columnwise, nullptr, nullptr, nullptr, M, N};
    copy.codes = bytes_of(codes) + index * item_bytes(codes, leading);
    copy.scales = bytes_of(scales) + index * item_bytes(scales, leading);
    if (amax)
      copy.amax = floats_of(*amax) +
                  index * elements_after(amax->dimensions(), leading);
    return copy;
  }
};

// An operand; its amax is an empty buffer where the scheme has none.
inline CopyBuffers operand_buffers(int64_t scheme, bool columnwise, int64_t M,
                                   int64_t N, ffi::AnyBuffer codes,
                                   ffi::AnyBuffer scales, ffi::AnyBuffer amax) {
  CopyBuffers copy{
      {static_cast<int>(scheme)}, columnwise, M, N, codes, scales, {}};
  if (is_given(amax))
    copy.amax = amax;
  return copy;
}

// A copy to be made; null where its scheme is negative. Results come as codes,
// scales and, where the scheme has one, the amax; `given` may hold it.
struct TargetBuffers {
  CopyBuffers parts;
  float epsilon;
  ffi::AnyBuffer given;

  // The amaxes that are given are where kernels look for them from here on.
  TargetCopy item(int64_t index, size_t leading) const {
    TargetCopy copy{parts.item(index, leading), epsilon,
                    parts.amax && is_given(given)};
    const int64_t bytes = copy.amax_given ? item_bytes(given, leading) : 0;
    if (copy.amax_given)
      std::memcpy(copy.amax, bytes_of(given) + index * bytes, bytes);
    return copy;
  }
};

inline std::optional<TargetBuffers> take_target(ffi::RemainingRets results,
                                                size_t &next, int64_t scheme,
                                                bool columnwise, int64_t M,
                                                int64_t N, float epsilon,
                                                ffi::AnyBuffer given) {
  if (scheme < 0)
    return std::nullopt;
  const auto take = [&] {
    return *results.get<ffi::AnyBuffer>(next++).value();
  };
  const SchemeBits bits{static_cast<int>(scheme)};
  const ffi::AnyBuffer codes = take(), scales = take();
  CopyBuffers parts{bits, columnwise, M, N, codes, scales, {}};
  if (bits.has_amax())
    parts.amax = take();
  return TargetBuffers{parts, epsilon, given};
}

} // namespace steelyard
