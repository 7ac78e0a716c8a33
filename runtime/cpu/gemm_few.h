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

// Codes that are decoded together, and a scale stands for a multiple of them.
static constexpr int64_t kRun = 32;

// The order in which the codes of a run come out: by their place in four bytes,
// the odd ones first.
static inline void arrange_run(float *row) {
  constexpr int places[4] = {3, 1, 2, 0};
  float run[kRun];
  std::memcpy(run, row, sizeof run);
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 8; ++i)
      row[8 * j + i] = run[4 * i + places[j]];
}

static inline void arrange_rows(float *rows, int64_t count, int64_t k) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t q = 0; q < k; q += kRun)
      arrange_run(rows + r * kRowStride + q);
}

template <Element E> struct RunDecoder {
  static constexpr int kShift = E == Element::e4m3 ? 4 : 3;
  static constexpr int kMask = E == Element::e4m3 ? 0x87f0 : 0x8fe0;

  // 16 bytes in the high halves of 16 words, as bfloat16.
  static inline __m256i place(__m256i words) {
    return _mm256_and_si256(_mm256_srai_epi16(words, kShift),
                            _mm256_set1_epi16(static_cast<short>(kMask)));
  }
  static inline void widen(__m256i placed, __m256 &high, __m256 &low) {
    high = _mm256_castsi256_ps(_mm256_and_si256(
        placed, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    low = _mm256_castsi256_ps(_mm256_slli_epi32(placed, 16));
  }
  static inline void decode(__m256i codes, __m256 (&values)[4]) {
    widen(place(codes), values[0], values[1]);
    widen(place(_mm256_slli_epi16(codes, 8)), values[2], values[3]);
  }
};

template <Element E> class FewColumns {
public:
  explicit FewColumns(const GemmCall &call) : call_(call), x_(call.b) {
    if (x_.scale_type != ScaleType::e8m0)
      return;
    for (int byte = 0; byte < 256; ++byte)
      table_[byte] = panel_scale(decode_e8m0(byte), x_.unit);
  }

  // The sums of every column of a tile of at most kFewRows rows.
  void multiply(const OutputTile<float> &tile) const {
    switch (x_.scale_type) {
    case ScaleType::f32:
      return multiply_by<ScaleType::f32>(tile);
    case ScaleType::e8m0:
      return multiply_by<ScaleType::e8m0>(tile);
    default:
      return multiply_by<ScaleType::none>(tile);
    }
  }

private:
  // Chains of sums that are added at the end: one would wait for itself.
  template <int Rows> static constexpr int kChains = Rows == 1 ? 4 : 2;
  // The same within a run that has a scale.
  template <int Rows> static constexpr int kRunChains = Rows <= 2 ? 2 : 1;

  template <int Rows> struct Sums {
    __m256 total[Rows][kChains<Rows>] = {};
    __m256i largest = _mm256_setzero_si256(); // codes without sign, doubled
    bool infinite_scale = false;
    float scale = 0.0f; // f32: of the block that is being summed
  };

  template <ScaleType S> void multiply_by(const OutputTile<float> &tile) const {
    switch (tile.rows) {
    case 1:
      return multiply_rows<S, 1>(tile);
    case 2:
      return multiply_rows<S, 2>(tile);
    case 3:
      return multiply_rows<S, 3>(tile);
    default:
      return multiply_rows<S, 4>(tile);
    }
  }

  template <ScaleType S, int Rows>
  void multiply_rows(const OutputTile<float> &tile) const {
    for (int64_t j = 0; j < tile.columns; ++j) {
      const int64_t column = call_.column + tile.column + j;
      Sums<Rows> sums;
      for (int64_t slice = 0; slice < call_.slices; ++slice)
        add_slice<S, Rows>(column, slice, packed_row(slice, tile.row), sums);
      const bool careful = sums.infinite_scale || is_special(sums.largest);
      for (int r = 0; r < Rows; ++r) {
        const float sum = careful ? sum_carefully(column, tile.row + r)
                                  : sum_of(sums.total[r]);
        float &target = tile.sums[r * call_.tile_columns + j];
        target = call_.first_slab ? sum : target + sum;
      }
    }
  }

  template <ScaleType S, int Rows>
  void add_slice(int64_t column, int64_t slice, const float *rows,
                 Sums<Rows> &sums) const {
    const int64_t p = call_.k + slice * kSlice, k = slice_length(call_, slice);
    const uint8_t *codes = x_.codes + column * x_.codes_stride + p;
    int64_t q = 0;
    for (; q + kRun <= k; q += kRun)
      add_run<S, Rows>(codes + q, column, p + q, rows + q, sums);
    if (q == k)
      return;
    alignas(32) uint8_t rest[kRun] = {};
    std::memcpy(rest, codes + q, k - q);
    add_run<S, Rows>(rest, column, p + q, rows + q, sums);
  }

  template <ScaleType S, int Rows>
  inline void add_run(const uint8_t *codes, int64_t column, int64_t p,
                      const float *rows, Sums<Rows> &sums) const {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    _mm_prefetch(codes + kBytesAhead, _MM_HINT_T0);
    __m256 values[4], run[Rows][kRunChains<Rows>] = {};
    sums.largest = _mm256_max_epu8(sums.largest, _mm256_add_epi8(bytes, bytes));
    RunDecoder<E>::decode(bytes, values);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        __m256 &sum = S == ScaleType::none ? sums.total[r][v % kChains<Rows>]
                                           : run[r][v % kRunChains<Rows>];
        sum = _mm256_fmadd_ps(
            values[v], _mm256_loadu_ps(rows + r * kRowStride + 8 * v), sum);
      }
    if constexpr (S == ScaleType::none)
      return;
    const __m256 scale = _mm256_set1_ps(scale_of<S>(column, p, sums));
    for (int r = 0; r < Rows; ++r)
      for (int c = 0; c < kRunChains<Rows>; ++c)
        sums.total[r][c] = _mm256_fmadd_ps(run[r][c], scale, sums.total[r][c]);
  }

  template <ScaleType S, int Rows>
  inline float scale_of(int64_t column, int64_t p, Sums<Rows> &sums) const {
    const int64_t index = scale_index(x_, column, p);
    if constexpr (S == ScaleType::e8m0)
      return table_[static_cast<const uint8_t *>(x_.scales)[index]];
    if (p % x_.k_block() == 0) {
      const float scale = static_cast<const float *>(x_.scales)[index];
      sums.infinite_scale |= (bits_of(scale) & kAbsMask) == kInfinity;
      sums.scale = panel_scale(scale, x_.unit);
    }
    return sums.scale;
  }

  static bool is_special(__m256i largest) {
    const __m256i least = _mm256_set1_epi8(
        static_cast<char>(E == Element::e4m3 ? 0x7f << 1 : 0x7c << 1));
    const __m256i found =
        _mm256_cmpeq_epi8(_mm256_max_epu8(largest, least), largest);
    return !_mm256_testz_si256(found, found);
  }

  float sum_carefully(int64_t column, int64_t row) const {
    constexpr double placed = E == Element::e4m3 ? 0x1p-120 : 0x1p-112;
    double sum = 0.0;
    for (int64_t slice = 0; slice < call_.slices; ++slice) {
      const int64_t p = call_.k + slice * kSlice,
                    k = slice_length(call_, slice);
      const float *values = packed_row(slice, row);
      for (int64_t q = 0; q < k; ++q)
        sum += values[arranged(q)] * placed * code_at(x_, column, p + q) *
               scale_at(x_, scale_index(x_, column, p + q)) * x_.unit;
    }
    return static_cast<float>(sum);
  }

  static int64_t arranged(int64_t q) {
    constexpr int runs[4] = {3, 1, 2, 0};
    return q / kRun * kRun + 8 * runs[q % 4] + q % kRun / 4;
  }

  const float *packed_row(int64_t slice, int64_t row) const {
    return static_cast<const float *>(call_.packed) +
           (slice * call_.units() * kRowUnit + row) * kRowStride;
  }

  template <int Chains> static float sum_of(const __m256 (&chains)[Chains]) {
    __m256 x = chains[0];
    for (int c = 1; c < Chains; ++c)
      x = _mm256_add_ps(x, chains[c]);
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
