// The product of two panels, kHeight rows by kWidth columns, in
// registers. Included by kernel sources only.
#pragma once

#include "cpu/gemm/gemm.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int kVectorBytes = sizeof(WidestFloats);
// As many sums as the registers hold beside what is multiplied.
static constexpr int kHeight = kVectorBytes == 64   ? 12
                               : kVectorBytes == 32 ? 6
                                                    : 3;
static constexpr int kWidth = kVectorBytes == 64 ? 32 : 16;
static_assert(kRowUnit % kHeight == 0 && kColumnUnit % kWidth == 0);

static inline WidestDoubles multiply_add(WidestDoubles a, WidestDoubles b,
                                         WidestDoubles c) {
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
  multiply_panel<float, WidestFloats>(a, b, k, c, c_stride, first);
}

static inline void multiply_panel(const double *a, const double *b, int64_t k,
                                  double *c, int64_t c_stride, bool first) {
  multiply_panel<double, WidestDoubles>(a, b, k, c, c_stride, first);
}

} // namespace steelyard::STEELYARD_ISA
