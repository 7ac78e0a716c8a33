// The product of two packed panels, kHeight rows by kWidth columns, in
// registers. Included by kernel sources only.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/gemm/gemm.h"

namespace steelyard::STEELYARD_ISA {

#if defined(__AVX512F__)
static constexpr int kVectorBytes = 64, kHeight = 12, kWidth = 32;
#elif defined(__AVX2__)
static constexpr int kVectorBytes = 32, kHeight = 6, kWidth = 16;
#else
static constexpr int kVectorBytes = 16, kHeight = 3, kWidth = 16;
#endif
static_assert(kRowUnit % kHeight == 0 && kColumnUnit % kWidth == 0);

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));

static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

static inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
  return a * b + c;
}

// c = a b, or c += a b if not `first`: rows of `a` are kRowStride apart, `b` is
// [k][kWidth]; `b` and `c` are aligned to a vector.
template <class T, class Vector>
static inline void multiply_panel(const T *a, const T *b, int64_t k, T *c,
                                  int64_t c_stride, bool first) {
  constexpr int vectors = kWidth * sizeof(T) / kVectorBytes;
  // Sums of the slices before are far by now; they arrive while k is summed.
  for (int r = 0; r < kHeight; ++r)
    for (int line = 0; line < kWidth; line += 64 / sizeof(T))
      __builtin_prefetch(c + r * c_stride + line, 1);
  // So do the rows that come next, a part of a line with each k.
  constexpr int64_t ahead = kHeight * kRowStride, step = ahead / kSlice + 1;
  Vector sum[kHeight][vectors] = {};
  for (int64_t p = 0; p < k; ++p) {
    __builtin_prefetch(a + ahead + p * step);
    const Vector *columns = reinterpret_cast<const Vector *>(b + p * kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      const Vector row = a[r * kRowStride + p] - Vector{};
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = multiply_add(row, columns[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r) {
    Vector *target = reinterpret_cast<Vector *>(c + r * c_stride);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v)
      target[v] = first ? sum[r][v] : target[v] + sum[r][v];
  }
}

static inline void multiply_panel(const float *a, const float *b, int64_t k,
                                  float *c, int64_t c_stride, bool first) {
  multiply_panel<float, Floats>(a, b, k, c, c_stride, first);
}

static inline void multiply_panel(const double *a, const double *b, int64_t k,
                                  double *c, int64_t c_stride, bool first) {
  multiply_panel<double, Doubles>(a, b, k, c, c_stride, first);
}

} // namespace steelyard::STEELYARD_ISA
