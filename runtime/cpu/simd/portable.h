// The operations of simd.h, lane by lane: what every instruction set must
// compute. tests/runtime/simd_operations.cpp holds the others against these.
// Kernels for machines without vectors take plain loops instead, which
// compilers turn into better code.
#pragma once

#include "cpu/formats/casts.h"
#include "cpu/simd/vectors.h"

namespace steelyard {

namespace STEELYARD_ISA {

// Whether kernels use vectors of 32 bytes.
static constexpr bool kHasVectors = false;

// The widest vectors of the instruction set.
typedef float WidestFloats __attribute__((vector_size(16)));
typedef double WidestDoubles __attribute__((vector_size(16)));
typedef int32_t WidestWords __attribute__((vector_size(16)));

template <class Vector, class Vector2, class Lane>
static inline Vector each_lane(Vector2 a, Vector2 b, const Lane &lane) {
  Vector out;
  for (unsigned i = 0; i < sizeof(Vector) / sizeof out[0]; ++i)
    out[i] = lane(a[i], b[i]);
  return out;
}

template <class Integer>
static inline Integer clamp_to(int64_t value, int64_t low, int64_t high) {
  return static_cast<Integer>(value < low ? low : value > high ? high : value);
}

// Each 16 bytes of the result hold those of a, narrowed, then those of b.
template <class Vector, class Wide>
static inline Vector narrow(Wide a, Wide b, int64_t low, int64_t high) {
  constexpr int lanes = 16 / sizeof a[0];
  Vector out;
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < lanes; ++i) {
      using Lane = decltype(out[0] + 0);
      const int from = half * lanes + i, to = 2 * half * lanes + i;
      out[to] = clamp_to<Lane>(a[from], low, high);
      out[to + lanes] = clamp_to<Lane>(b[from], low, high);
    }
  return out;
}

// a * b + c, rounded once.
static inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  // The product is exact. A sum that is not exact gets an odd last bit, so that
  // the second rounding never meets a false tie.
  const double product = static_cast<double>(a) * b, sum = product + c;
  const double added = sum - product;
  const double rest = (product - (sum - added)) + (c - added);
  int64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  const int64_t away = (rest > 0) == (sum > 0) ? 1 : -1;
  if ((rest < 0 || rest > 0) && bits % 2 == 0)
    bits += away;
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return static_cast<float>(odd);
#endif
}

static inline Floats8 multiply_add(Floats8 a, Floats8 b, Floats8 c) {
  Floats8 out;
  for (int i = 0; i < 8; ++i)
    out[i] = fused(a[i], b[i], c[i]);
  return out;
}

// The same of the widest vectors; rounded twice where nothing rounds once.
static inline WidestFloats multiply_add(WidestFloats a, WidestFloats b,
                                        WidestFloats c) {
  return a * b + c;
}

// The larger of each pair of lanes.
// Of each 16 bytes of a vector, from places `stride` bytes apart.
static inline WidestWords load_pieces(const uint8_t *memory, int64_t) {
  return load<WidestWords>(memory);
}

static inline SignedWords8 maximum(SignedWords8 a, SignedWords8 b) {
  return each_lane<SignedWords8>(
      a, b, [](int32_t x, int32_t y) { return x > y ? x : y; });
}

static inline SignedWords8 minimum(SignedWords8 a, SignedWords8 b) {
  return each_lane<SignedWords8>(
      a, b, [](int32_t x, int32_t y) { return x < y ? x : y; });
}

static inline SignedHalves16 maximum(SignedHalves16 a, SignedHalves16 b) {
  return each_lane<SignedHalves16>(
      a, b, [](int16_t x, int16_t y) { return x > y ? x : y; });
}

static inline Bytes32 maximum(Bytes32 a, Bytes32 b) {
  return each_lane<Bytes32>(a, b,
                            [](uint8_t x, uint8_t y) { return x > y ? x : y; });
}

// Whether every bit is zero.
template <class Vector> static inline bool is_zero(Vector x) {
  const Longs4 longs = (Longs4)x;
  return (longs[0] | longs[1] | longs[2] | longs[3]) == 0;
}

// a - b, or 0 where b is larger.
static inline Halves16 subtract_saturated(Halves16 a, Halves16 b) {
  return each_lane<Halves16>(a, b, [](uint16_t x, uint16_t y) {
    return static_cast<uint16_t>(x > y ? x - y : 0);
  });
}

// Lanes of half the width, saturated; `in_order_of_*` undoes the order.
static inline Halves16 narrow_unsigned(SignedWords8 a, SignedWords8 b) {
  return narrow<Halves16>(a, b, 0, 65535);
}

static inline SignedHalves16 narrow_signed(SignedWords8 a, SignedWords8 b) {
  return narrow<SignedHalves16>(a, b, -32768, 32767);
}

static inline Bytes32 narrow_unsigned(SignedHalves16 a, SignedHalves16 b) {
  return narrow<Bytes32>(a, b, 0, 255);
}

static inline Bytes32 narrow_signed(SignedHalves16 a, SignedHalves16 b) {
  return (Bytes32)narrow<SignedBytes32>(a, b, -128, 127);
}

// The upper 16 bits of each product.
static inline SignedHalves16 multiply_high(SignedHalves16 a, SignedHalves16 b) {
  return each_lane<SignedHalves16>(a, b, [](int16_t x, int16_t y) {
    return static_cast<int16_t>(x * y >> 16);
  });
}

// Sums of the products of neighbouring lanes.
static inline SignedWords8 dot_pairs(SignedHalves16 a, SignedHalves16 b) {
  SignedWords8 out;
  for (int i = 0; i < 8; ++i)
    out[i] = static_cast<int32_t>(
        static_cast<uint32_t>(a[2 * i] * b[2 * i]) +
        static_cast<uint32_t>(a[2 * i + 1] * b[2 * i + 1]));
  return out;
}

// The same of unsigned and signed bytes, saturated.
static inline SignedHalves16 dot_pairs(Bytes32 a, SignedBytes32 b) {
  SignedHalves16 out;
  for (int i = 0; i < 16; ++i)
    out[i] = clamp_to<int16_t>(
        a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1], -32768, 32767);
  return out;
}

// Products of the lower 32 bits of each lane.
static inline Longs4 multiply_low_words(Longs4 a, Longs4 b) {
  return (a & 0xffffffff) * (b & 0xffffffff);
}

// The lower 16 bits of each lane from one vector, the upper from the other.
static inline Words8 alternate_halves(Words8 low, Words8 high) {
  return (low & 0xffff) | (high & 0xffff0000);
}

// table[index] for indices below 16, in each 16 bytes.
static inline Bytes16 look_up(Bytes16 table, Bytes16 indices) {
  return each_lane<Bytes16>(indices, indices,
                            [&](uint8_t i, uint8_t) { return table[i & 15]; });
}

static inline Bytes32 look_up(Bytes32 table, Bytes32 indices) {
  return join(look_up(low_half(table), low_half(indices)),
              look_up(high_half(table), high_half(indices)));
}

// Lanes of twice the width.
static inline Halves16 widen(Bytes16 x) {
  return __builtin_convertvector(x, Halves16);
}

static inline Words8 widen(Halves8 x) {
  return __builtin_convertvector(x, Words8);
}

// The same of 8 signed bytes.
static inline SignedWords8 widen_signed_bytes(const uint8_t *bytes) {
  SignedWords8 out;
  for (int i = 0; i < 8; ++i)
    out[i] = static_cast<int8_t>(bytes[i]);
  return out;
}

// float16 as float32; NaN becomes quiet.
static inline Floats8 float_of_f16(Halves8 x) {
  Floats8 out;
  for (int i = 0; i < 8; ++i) {
    const bool is_nan = (x[i] & 0x7fff) > 0x7c00;
    out[i] = float_of(bits_of(from_f16(x[i])) | (is_nan ? 0x400000u : 0u));
  }
  return out;
}

// The sum of the lanes of each vector: neighbours, then pairs, then halves.
static inline Floats4 sums_of_4(const Floats8 (&x)[4]) {
  Floats4 out;
  for (int i = 0; i < 4; ++i)
    out[i] = ((x[i][0] + x[i][1]) + (x[i][2] + x[i][3])) +
             ((x[i][4] + x[i][5]) + (x[i][6] + x[i][7]));
  return out;
}

// Sums of neighbouring lanes: in each 16 bytes those of a, then those of b.
static inline Floats8 sums_of_pairs(Floats8 a, Floats8 b) {
  return Floats8{a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3],
                 a[4] + a[5], a[6] + a[7], b[4] + b[5], b[6] + b[7]};
}

// Sums of products of unsigned and signed bytes, four lanes at a time; how they
// are held while they are summed is the instruction set's affair. The sum of
// any two neighbouring products, and of all those of pairs, fits 16 bits.
typedef SignedWords8 ByteProducts;

static inline ByteProducts add_products(ByteProducts sum, Bytes32 a,
                                        SignedBytes32 b) {
  for (int i = 0; i < 32; ++i)
    sum[i / 4] += a[i] * b[i];
  return sum;
}

static inline SignedWords8 total_of(ByteProducts products) { return products; }

// Stores past the caches, where the instruction set has them: the address must
// be aligned to the vector. `end_streams` comes before other threads read.
static inline void store_streamed(uint8_t *memory, Bytes32 x) {
  store(memory, x);
}

static inline void store_streamed(uint8_t *memory, Bytes16 x) {
  store(memory, x);
}

static inline void end_streams() {}

} // namespace STEELYARD_ISA
} // namespace steelyard
