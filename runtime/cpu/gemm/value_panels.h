// Panels of an operand that is not quantized. Included by kernel sources only.
#pragma once

#include "cpu/gemm/panels.h"
#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

// `n` values of a row as float32.
static inline void load_values(const Matrix &x, int64_t row, int64_t column,
                               int64_t n, float *out) {
  const int64_t first = row * x.row_stride + column * x.column_stride;
  const float *floats = static_cast<const float *>(x.data) + first;
  const uint16_t *halves = static_cast<const uint16_t *>(x.data) + first;
  if (x.column_stride == 1) {
    const bool wide = x.dtype == Dtype::f32;
    widen_row(wide ? static_cast<const void *>(floats) : halves, x.dtype, n,
              out);
    return;
  }
  for (int64_t j = 0; j < n; ++j)
    out[j] = x.dtype == Dtype::f32
                 ? floats[j * x.column_stride]
                 : widen(halves[j * x.column_stride], x.dtype);
}

template <> class PanelFiller<Element::values> {
public:
  explicit PanelFiller(const GemmOperand &x) : x_(x) {}

  void fill_rows(int64_t first, int64_t rows, int64_t p, int64_t k,
                 float *out) const {
    // Two factors, because the unit of subnormal values is beyond float32.
    const float lift = x_.unit > 0x1p64 ? 0x1p64f : 1.0f;
    const float unit = static_cast<float>(x_.unit / lift);
    const int64_t whole = (k + 31) / 32 * 32;
    for (int64_t r = 0; r < rows; ++r, out += kRowStride) {
      const int64_t n = first + r < x_.outer ? k : 0;
      if (n > 0)
        load_values(x_.values, first + r, p, n, out);
      for (int64_t j = 0; j < n; ++j)
        out[j] = out[j] * lift * unit;
      std::memset(out + n, 0, (whole - n) * sizeof *out);
    }
  }

  void fill_rows(int64_t first, int64_t rows, int64_t p, int64_t k,
                 double *out) const {
    float values[kSlice];
    for (int64_t r = 0; r < rows; ++r, out += kRowStride) {
      const int64_t n = first + r < x_.outer ? k : 0;
      if (n > 0)
        load_values(x_.values, first + r, p, n, values);
      for (int64_t j = 0; j < k; ++j)
        out[j] = j < n ? values[j] * x_.unit : 0.0;
    }
  }

private:
  const GemmOperand &x_;
};

} // namespace steelyard::STEELYARD_ISA
