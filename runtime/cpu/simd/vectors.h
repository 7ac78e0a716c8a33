// Vectors as g++ and clang++ both know them: operators work lane by lane on any
// instruction set, and what they cannot say is an operation of simd.h. Included
// by kernel sources only.
#pragma once

#include <cstdint>
#include <cstring>

namespace steelyard {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Halves8 __attribute__((vector_size(16)));
typedef uint32_t Words4 __attribute__((vector_size(16)));
typedef float Floats4 __attribute__((vector_size(16)));

typedef uint8_t Bytes32 __attribute__((vector_size(32)));
typedef int8_t SignedBytes32 __attribute__((vector_size(32)));
typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef int16_t SignedHalves16 __attribute__((vector_size(32)));
typedef uint32_t Words8 __attribute__((vector_size(32)));
typedef int32_t SignedWords8 __attribute__((vector_size(32)));
typedef uint64_t Longs4 __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));

typedef uint64_t Longs2 __attribute__((vector_size(16)));
typedef uint32_t Words16 __attribute__((vector_size(64)));
typedef uint64_t Longs8 __attribute__((vector_size(64)));

namespace STEELYARD_ISA {

// From and to memory of any alignment.
template <class Vector> static inline Vector load(const void *memory) {
  Vector loaded;
  std::memcpy(&loaded, memory, sizeof loaded);
  return loaded;
}

template <class Vector> static inline void store(void *memory, Vector vector) {
  std::memcpy(memory, &vector, sizeof vector);
}

// The same bits in other lanes.
template <class Vector, class From> static inline Vector as(From vector) {
  static_assert(sizeof(Vector) == sizeof vector);
  return (Vector)vector;
}

// One value in every lane.
static inline Floats8 broadcast(float x) {
  return Floats8{x, x, x, x, x, x, x, x};
}

static inline SignedWords8 broadcast(int32_t x) {
  return SignedWords8{x, x, x, x, x, x, x, x};
}

static inline Longs4 broadcast(uint64_t x) { return Longs4{x, x, x, x}; }

static inline Halves16 broadcast(uint16_t x) {
  return Halves16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

static inline Bytes32 join(Bytes16 low, Bytes16 high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
                                 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

static inline Bytes16 low_half(Bytes32 x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                 13, 14, 15);
}

static inline Bytes16 high_half(Bytes32 x) {
  return __builtin_shufflevector(x, x, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                 26, 27, 28, 29, 30, 31);
}

// The low or high halves of two vectors, one after the other.
static inline Words8 join_low(Words8 a, Words8 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
}

static inline Words8 join_high(Words8 a, Words8 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

// Lanes of a and b by turns, from the lower or upper lanes of each 16 bytes.
static inline Bytes16 zip_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                 6, 22, 7, 23);
}

static inline Bytes16 zip_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                 29, 14, 30, 15, 31);
}

static inline Bytes32 zip_low(Bytes32 a, Bytes32 b) {
  return __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37,
                                 6, 38, 7, 39, 16, 48, 17, 49, 18, 50, 19, 51,
                                 20, 52, 21, 53, 22, 54, 23, 55);
}

static inline Bytes32 zip_high(Bytes32 a, Bytes32 b) {
  return __builtin_shufflevector(a, b, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13,
                                 45, 14, 46, 15, 47, 24, 56, 25, 57, 26, 58, 27,
                                 59, 28, 60, 29, 61, 30, 62, 31, 63);
}

static inline Words4 zip_low(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}

static inline Words4 zip_high(Words4 a, Words4 b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

static inline Words8 zip_low(Words8 a, Words8 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
}

static inline Words8 zip_high(Words8 a, Words8 b) {
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}

static inline Words16 zip_low(Words16 a, Words16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25,
                                 12, 28, 13, 29);
}

static inline Words16 zip_high(Words16 a, Words16 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11,
                                 27, 14, 30, 15, 31);
}

static inline Longs2 zip_low(Longs2 a, Longs2 b) {
  return __builtin_shufflevector(a, b, 0, 2);
}

static inline Longs2 zip_high(Longs2 a, Longs2 b) {
  return __builtin_shufflevector(a, b, 1, 3);
}

static inline Longs4 zip_low(Longs4 a, Longs4 b) {
  return __builtin_shufflevector(a, b, 0, 4, 2, 6);
}

static inline Longs4 zip_high(Longs4 a, Longs4 b) {
  return __builtin_shufflevector(a, b, 1, 5, 3, 7);
}

static inline Longs8 zip_low(Longs8 a, Longs8 b) {
  return __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
}

static inline Longs8 zip_high(Longs8 a, Longs8 b) {
  return __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
}

// Even lanes of a, odd lanes of b.
static inline Words8 alternate(Words8 a, Words8 b) {
  return __builtin_shufflevector(a, b, 0, 9, 2, 11, 4, 13, 6, 15);
}

// What `narrow_*` of simd.h leaves of four vectors, or of two, in their order.
static inline Bytes32 in_order_of_4(Bytes32 narrowed) {
  const Words8 words = (Words8)narrowed;
  return (Bytes32)__builtin_shufflevector(words, words, 0, 4, 1, 5, 2, 6, 3, 7);
}

static inline Bytes32 in_order_of_2(Bytes32 narrowed) {
  const Longs4 longs = (Longs4)narrowed;
  return (Bytes32)__builtin_shufflevector(longs, longs, 0, 2, 1, 3);
}

static inline Floats8 to_float(SignedWords8 x) {
  return __builtin_convertvector(x, Floats8);
}

} // namespace STEELYARD_ISA
} // namespace steelyard
