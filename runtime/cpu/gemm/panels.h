// Operands as panels of decoded values. Included by kernel sources only.
//
// A row of a panel is [k]; columns are [k][kWidth]. Rows and columns that the
// operand does not have are zero.
#pragma once

#include "cpu/gemm/decode.h"
#include "cpu/gemm/micro_kernel.h"

namespace steelyard::STEELYARD_ISA {

// Codes per byte of E.
template <Element E>
static constexpr int64_t kPerByte = E == Element::e2m1 ? 2 : 1;

template <Element E> class PanelFiller {
public:
  explicit PanelFiller(const GemmOperand &x) : x_(x) {
    if (x.scale_type != ScaleType::e8m0 && x.scale_type != ScaleType::e4m3)
      return;
    for (int byte = 0; byte < 256; ++byte) {
      const float scale = x.scale_type == ScaleType::e8m0 ? decode_e8m0(byte)
                                                          : decode_e4m3(byte);
      table_[byte] = panel_scale(scale, x.unit) * kDecodeFactor<E>;
    }
  }

  // `rows` rows from `first`, at most kRowUnit; `k` values each from `p`, at
  // most kSlice, and zeros up to a multiple of 32.
  void fill_rows(int64_t first, int64_t rows, int64_t p, int64_t k,
                 float *out) const {
    uint8_t lines[16][kSlice];
    for (int64_t r = 0; r < rows; ++r, out += kRowStride) {
      const int64_t i = first + r;
      const int64_t whole = (k + 31) / 32 * 32;
      if (i >= x_.outer) {
        std::memset(out, 0, whole * sizeof *out);
        continue;
      }
      if (x_.k_major && r % 16 == 0)
        transpose_lines(i, p, k, lines);
      decode_row(line(i, p, k, lines[r % 16]), i, p, k, out);
      // Decoding goes on to a multiple of 16, and an infinite scale makes NaN
      // of the zeros there.
      std::memset(out + k, 0, (whole - k) * sizeof *out);
    }
  }

  // kWidth columns from `first`.
  void fill_columns(int64_t first, int64_t p, int64_t k, float *out) const {
    for (int64_t group = 0; group < kWidth; group += 16)
      fill_group(first + group, p, k, out + group);
  }

  // The same in float64, exact for any scales.
  void fill_rows(int64_t first, int64_t rows, int64_t p, int64_t k,
                 double *out) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t q = 0; q < k; ++q)
        out[r * kRowStride + q] = value(first + r, p + q);
  }

  void fill_columns(int64_t first, int64_t p, int64_t k, double *out) const {
    for (int64_t q = 0; q < k; ++q)
      for (int64_t c = 0; c < kWidth; ++c)
        out[q * kWidth + c] = value(first + c, p + q);
  }

private:
  double value(int64_t i, int64_t p) const {
    if (i >= x_.outer)
      return 0.0;
    const double scaled = scale_at(x_, scale_index(x_, i, p)) * x_.unit;
    return code_at(x_, i, p) * scaled * (x_.fold ? x_.fold[i] : 1.0);
  }

  float factor(int64_t i, int64_t p) const {
    float found = kDecodeFactor<E> * static_cast<float>(x_.unit);
    if (x_.scale_type != ScaleType::none) {
      const int64_t index = scale_index(x_, i, p);
      found = x_.scale_type == ScaleType::f32
                  ? panel_scale(scale_at(x_, index), x_.unit) * kDecodeFactor<E>
                  : table_[static_cast<const uint8_t *>(x_.scales)[index]];
    }
    return x_.fold ? found * x_.fold[i] : found;
  }

  // FP8 codes of row `i` from `p`, expanded into `buffer` if need be.
  const uint8_t *line(int64_t i, int64_t p, int64_t k, uint8_t *buffer) const {
    if (x_.k_major)
      return buffer;
    const uint8_t *codes = x_.codes + i * x_.codes_stride + p / kPerByte<E>;
    if constexpr (E == Element::e2m1) {
      for (int64_t q = 0; q < k; q += 32) {
        const Bytes16 packed = load_some(codes + q / 2, (k - q + 1) / 2);
        const Bytes16 even = e5m2_of_e2m1(packed & 15);
        const Bytes16 odd = e5m2_of_e2m1(packed >> 4);
        store(buffer + q, zip_low(even, odd));
        store(buffer + q + 16, zip_high(even, odd));
      }
      return buffer;
    }
    return codes;
  }

  // 16 rows from `first` of an array that is stored (k, outer).
  void transpose_lines(int64_t first, int64_t p, int64_t k,
                       uint8_t (*lines)[kSlice]) const {
    alignas(16) uint8_t square[16][16];
    for (int64_t q = 0; q < k; q += 16) {
      for (int64_t s = 0; s < smaller(16, k - q); ++s)
        store(square[s], k_line(first, p + q + s));
      transpose_16x16(square[0], 16, lines[0] + q, kSlice);
    }
  }

  void decode_row(const uint8_t *codes, int64_t i, int64_t p, int64_t k,
                  float *out) const {
    float scale = 0.0f;
    for (int64_t q = 0; q < k; q += 16) {
      if (q % k_block(x_) == 0)
        scale = factor(i, p + q);
      decode_16<E>(load_some(codes + q, k - q), scale, out + q);
    }
  }

  // 16 columns, [k][kWidth].
  void fill_group(int64_t first, int64_t p, int64_t k, float *out) const {
    const int64_t columns = smaller(16, x_.outer - first);
    float factors[kSlice / 16][16];
    for (int64_t q = 0; q < k; q += k_block(x_))
      for (int64_t c = 0; c < 16; ++c)
        factors[q >> x_.k_shift][c] =
            c < columns ? factor(first + c, p + q) : 0.0f;
    const auto put = [&](int64_t q, Bytes16 codes) {
      const float *scales = factors[q >> x_.k_shift];
      decode_16<E>(codes, scales, out + q * kWidth);
    };
    if (x_.k_major) {
      for (int64_t q = 0; q < k; ++q)
        put(q, columns > 0 ? k_line(first, p + q) : Bytes16{});
      return;
    }
    if (x_.is_packed_weight)
      return fill_packed(first, columns, p, k, put);
    for (int64_t q = 0; q < k; q += kStaged * kPerByte<E>)
      fill_staged(first, columns, p, q, k, put);
  }

  // One cache line of each row at a time: rows may all lie in one cache set.
  template <class Put>
  void fill_staged(int64_t first, int64_t columns, int64_t p, int64_t q,
                   int64_t k, const Put &put) const {
    alignas(64) uint8_t staged[16][kStaged];
    const int64_t bytes =
        smaller(kStaged, (k - q + kPerByte<E> - 1) / kPerByte<E>);
    const uint8_t *source =
        x_.codes + first * x_.codes_stride + (p + q) / kPerByte<E>;
    if (columns == 16 && bytes == kStaged) {
      for (int64_t c = 0; c < 16; ++c)
        std::memcpy(staged[c], source + c * x_.codes_stride, kStaged);
    } else {
      std::memset(staged, 0, sizeof staged);
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(staged[c], source + c * x_.codes_stride, bytes);
    }
    alignas(16) uint8_t lines[16][16];
    for (int64_t byte = 0; byte < bytes; byte += 16) {
      transpose_16x16(staged[0] + byte, kStaged, lines[0], 16);
      put_lines(lines, 16, q + byte * kPerByte<E>, k, put);
    }
  }

  // The same from units of a packed weight.
  template <class Put>
  void fill_packed(int64_t first, int64_t columns, int64_t p, int64_t k,
                   const Put &put) const {
    alignas(16) uint8_t lines[8][16] = {};
    for (int64_t q = 0; q < k; q += kUnitBlock) {
      for (int64_t c = 0; c < columns; c += kGroupColumns)
        spread_unit(x_.codes + packed_code(x_, first + c, p + q), c, lines);
      put_lines(lines, 8, q, k, put);
    }
  }

  // The bytes of 8 columns of a unit, into the columns of lines from `column`.
  static void spread_unit(const uint8_t *unit, int64_t column,
                          uint8_t (*lines)[16]) {
    constexpr Bytes16 order = {0, 4, 8,  12, 1, 5, 9,  13,
                               2, 6, 10, 14, 3, 7, 11, 15};
    for (int64_t quads = 0; quads < 4; ++quads) {
      alignas(16) uint8_t bytes[4][4];
      store(bytes, look_up(load<Bytes16>(unit + 16 * quads), order));
      for (int64_t b = 0; b < 4; ++b)
        std::memcpy(lines[quads / 2 * 4 + b] + column + quads % 2 * 4, bytes[b],
                    4);
    }
  }

  template <class Put>
  static void put_lines(const uint8_t (*lines)[16], int64_t count, int64_t q,
                        int64_t k, const Put &put) {
    for (int64_t s = 0; s < count && q < k; ++s) {
      const Bytes16 codes = load<Bytes16>(lines[s]);
      if constexpr (E == Element::e2m1) {
        put(q++, e5m2_of_e2m1(codes & 15));
        if (q < k)
          put(q++, e5m2_of_e2m1(codes >> 4));
      } else {
        put(q++, codes);
      }
    }
  }

  // Codes of 16 outer indices from `first` at one k; those that are missing
  // are zero.
  Bytes16 k_line(int64_t first, int64_t p) const {
    return load_some(x_.codes + p * x_.codes_stride + first, x_.outer - first);
  }

  static Bytes16 load_some(const uint8_t *bytes, int64_t n) {
    if (n >= 16)
      return load<Bytes16>(bytes);
    Bytes16 loaded = {};
    std::memcpy(&loaded, bytes, n);
    return loaded;
  }

  static constexpr int64_t kStaged = 64;

  const GemmOperand &x_;
  float table_[256];
};

} // namespace steelyard::STEELYARD_ISA
