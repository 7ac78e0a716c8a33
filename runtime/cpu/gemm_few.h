// FP8 columns times a few float32 rows, decoded on the way to the sums: memory
// is read once and nothing is written. Included by kernel sources only.
//
// Shifted into place, the bits of a code are those of the float32
// value * 2^-120 (E4M3) or value * 2^-112 (E5M2), subnormal codes included; the
// rows are lifted by kFewLift, and the factors at the end take both back. Codes
// that are NaN or infinite look finite that way: a column that holds one is
// summed again, one code at a time.
#pragma once

#if defined(__AVX2__)

#include <immintrin.h>

#include "gemm_decode.h"
#include "gemm_tiles.h"

namespace steelyard::STEELYARD_ISA {

template <Element E> class FewColumns {
public:
  explicit FewColumns(const GemmCall &call) : call_(call), x_(call.b) {
    for (int byte = 0; byte < 256; ++byte)
      table_[byte] = panel_scale(decode_e8m0(byte), x_.unit);
  }

  // The sums of every column of a tile of at most kFewRows rows.
  void multiply(const OutputTile<float> &tile) const {
    switch (tile.rows) {
    case 1:
      return multiply_rows<1>(tile);
    case 2:
      return multiply_rows<2>(tile);
    case 3:
      return multiply_rows<3>(tile);
    default:
      return multiply_rows<4>(tile);
    }
  }

private:
  // Codes that are decoded together; a scale stands for a multiple of them.
  static constexpr int64_t kRun = 32;

  // Chains of sums that are added at the end: one would wait for itself.
  template <int Rows> static constexpr int kChains = Rows == 1 ? 4 : 2;

  struct Special {
    __m256i largest = _mm256_setzero_si256(); // codes without sign, doubled
    bool infinite_scale = false;
  };

  template <int Rows> void multiply_rows(const OutputTile<float> &tile) const {
    const bool scaled = x_.scale_type != ScaleType::none;
    for (int64_t j = 0; j < tile.columns; ++j) {
      const int64_t column = call_.column + tile.column + j;
      float sums[Rows];
      Special special;
      if (scaled)
        sum_column<Rows, true>(tile, column, sums, special);
      else
        sum_column<Rows, false>(tile, column, sums, special);
      if (special.infinite_scale || is_special(special.largest))
        sum_carefully(tile, column, Rows, sums);
      for (int64_t r = 0; r < Rows; ++r) {
        float &sum = tile.sums[r * call_.tile_columns + j];
        sum = call_.first_slab ? sums[r] : sum + sums[r];
      }
    }
  }

  template <int Rows, bool Scaled>
  void sum_column(const OutputTile<float> &tile, int64_t column, float *sums,
                  Special &special) const {
    __m256 total[Rows][kChains<Rows>] = {};
    float scales[kSlice / kRun];
    for (int64_t slice = 0; slice < call_.slices; ++slice) {
      const int64_t p = call_.k + slice * kSlice,
                    k = slice_length(call_, slice);
      const uint8_t *codes = x_.codes + column * x_.codes_stride + p;
      const float *rows = packed_row(slice, tile.row);
      if constexpr (Scaled)
        load_scales(column, p, k, scales, special);
      int64_t q = 0;
      for (; q + kRun <= k; q += kRun)
        add_run<Rows, Scaled>(codes + q, rows + q, scales[q / kRun], total,
                              special);
      if (q < k) {
        alignas(32) uint8_t rest[kRun] = {};
        std::memcpy(rest, codes + q, k - q);
        add_run<Rows, Scaled>(rest, rows + q, scales[q / kRun], total, special);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      __m256 sum = total[r][0];
      for (int c = 1; c < kChains<Rows>; ++c)
        sum = _mm256_add_ps(sum, total[r][c]);
      sums[r] = horizontal_sum(sum);
    }
  }

  template <int Rows, bool Scaled>
  static inline void add_run(const uint8_t *codes, const float *rows,
                             float scale, __m256 (&total)[Rows][kChains<Rows>],
                             Special &special) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    special.largest =
        _mm256_max_epu8(special.largest, _mm256_add_epi8(bytes, bytes));
    __m256 run[Rows] = {};
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256 values = decode_8(codes + 16 * (v / 2), v % 2);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        __m256 &sum = Scaled ? run[r] : total[r][v % kChains<Rows>];
        sum = _mm256_fmadd_ps(
            values, _mm256_loadu_ps(rows + r * kRowStride + 8 * v), sum);
      }
    }
    if constexpr (Scaled)
      for (int r = 0; r < Rows; ++r)
        total[r][0] =
            _mm256_fmadd_ps(run[r], _mm256_set1_ps(scale), total[r][0]);
  }

  // 8 of 16 codes, the first or the second half of them.
  static inline __m256 decode_8(const uint8_t *codes, int half) {
    const __m256i both =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes));
    const int z = -1, first = 8 * half;
    const __m256i top =
        _mm256_setr_epi8(z, z, z, first, z, z, z, first + 1, z, z, z, first + 2,
                         z, z, z, first + 3, z, z, z, first + 4, z, z, z,
                         first + 5, z, z, z, first + 6, z, z, z, first + 7);
    const __m256i high = _mm256_shuffle_epi8(both, top);
    constexpr bool e4m3 = E == Element::e4m3;
    const __m256i shifted = _mm256_srai_epi32(high, e4m3 ? 4 : 3);
    const uint32_t mask = e4m3 ? 0x87f00000u : 0x8fe00000u;
    return _mm256_castsi256_ps(_mm256_and_si256(
        shifted, _mm256_set1_epi32(static_cast<int32_t>(mask))));
  }

  void load_scales(int64_t column, int64_t p, int64_t k, float *scales,
                   Special &special) const {
    for (int64_t q = 0; q < k; q += kRun) {
      const int64_t index = scale_index(x_, column, p + q);
      if (x_.scale_type == ScaleType::e8m0) {
        scales[q / kRun] =
            table_[static_cast<const uint8_t *>(x_.scales)[index]];
        continue;
      }
      const float scale = scale_at(x_, index);
      scales[q / kRun] = panel_scale(scale, x_.unit);
      special.infinite_scale |= (bits_of(scale) & kAbsMask) == kInfinity;
    }
  }

  static bool is_special(__m256i largest) {
    const __m256i least = _mm256_set1_epi8(
        static_cast<char>(E == Element::e4m3 ? 0x7f << 1 : 0x7c << 1));
    const __m256i found =
        _mm256_cmpeq_epi8(_mm256_max_epu8(largest, least), largest);
    return !_mm256_testz_si256(found, found);
  }

  void sum_carefully(const OutputTile<float> &tile, int64_t column, int count,
                     float *sums) const {
    constexpr double placed = E == Element::e4m3 ? 0x1p-120 : 0x1p-112;
    for (int r = 0; r < count; ++r) {
      double sum = 0.0;
      for (int64_t slice = 0; slice < call_.slices; ++slice) {
        const float *row = packed_row(slice, tile.row + r);
        const int64_t p = call_.k + slice * kSlice;
        for (int64_t q = 0; q < slice_length(call_, slice); ++q)
          sum += row[q] * placed * code_at(x_, column, p + q) *
                 scale_at(x_, scale_index(x_, column, p + q)) * x_.unit;
      }
      sums[r] = static_cast<float>(sum);
    }
  }

  const float *packed_row(int64_t slice, int64_t row) const {
    return static_cast<const float *>(call_.packed) +
           (slice * call_.units() * kRowUnit + row) * kRowStride;
  }

  static float horizontal_sum(__m256 x) {
    __m128 sum =
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }

  const GemmCall &call_;
  const GemmOperand &x_;
  float table_[256]; // scales of E8M0 bytes
};

} // namespace steelyard::STEELYARD_ISA

#endif
