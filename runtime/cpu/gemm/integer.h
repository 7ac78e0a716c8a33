// NVFP4 x NVFP4 in integers, exact within each block of 16: a doubled E2M1
// value is an integer of at most 12. Included by kernel sources only.
//
// vpmaddubsw multiplies unsigned by signed bytes, so one side is offset by 12,
// and 12 times the sum of the other is taken off again. A column that comes
// from memory must be the signed one, a column in a register may be unsigned.
// VNNI does the same in one instruction.
#pragma once

#if defined(__AVX2__)

#include <immintrin.h>

#include "cpu/gemm/gemm.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/tiles/tile.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int64_t kSliceBlocks = kSlice / kUnitBlock;
// Groups of columns whose sums a row keeps in registers.
static constexpr int64_t kPanelGroups = kColumnUnit / kGroupColumns;
static constexpr int kCodeOffset = 12;

// A slice of a row; the codes of a block as runs of four: even k below 8, odd k
// below 8, even k from 8, odd k from 8.
struct IntegerRow {
  uint8_t codes[kSlice]; // offset by 12, or signed
  float scales[kSliceBlocks];
  float offsets[kSliceBlocks]; // -12 * sum of codes * scale; for signed codes
};

// 8 columns by 16 k, the same runs of each column.
struct alignas(32) IntegerUnit {
  int8_t codes[4][32];
  float scales[8], offsets[8];
};

// Where the units of a group lie: as packed, or staged.
struct GroupUnits {
  const uint8_t *codes, *scales;
};

struct alignas(64) StagedUnits {
  uint8_t codes[kSliceBlocks][kUnitBytes];
  uint8_t scales[kSliceBlocks][kGroupColumns];
};

// Doubled values of E2M1 codes, with an offset.
static inline __m256i doubled_codes(int offset) {
  const __m128i table =
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return _mm256_broadcastsi128_si256(
      _mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(offset))));
}

static inline __m256i low_nibbles(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

static inline __m256i load_32(const void *bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i *>(bytes));
}

// Half the values of 8 E4M3 bytes: both operands are doubled.
static inline __m256 half_scales(const uint8_t *bytes) {
  const __m256i wide =
      _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi32(0x7f));
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  const __m256i placed =
      _mm256_and_si256(_mm256_slli_epi32(wide, 20),
                       _mm256_set1_epi32(static_cast<int>(0x87f00000u)));
  const __m256 value =
      _mm256_mul_ps(_mm256_castsi256_ps(placed), _mm256_set1_ps(0x1p119f));
  return _mm256_or_ps(value, _mm256_castsi256_ps(nan));
}

// The four runs of 8 columns of a unit.
static inline void expand_unit(const uint8_t *codes, __m256i table,
                               __m256i (&runs)[4]) {
  for (int half = 0; half < 2; ++half) {
    const __m256i packed = load_32(codes + 32 * half);
    runs[2 * half] = _mm256_shuffle_epi8(table, low_nibbles(packed));
    runs[2 * half + 1] =
        _mm256_shuffle_epi8(table, low_nibbles(_mm256_srli_epi16(packed, 4)));
  }
}

static inline __m256i sum_of_pairs(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// sum + the products of unsigned and signed bytes, four at a time; as many
// pairs as a block has fit 16 bits.
static inline __m256i add_products(__m256i sum, __m256i bytes,
                                   __m256i signed_bytes) {
#if defined(__AVX512VNNI__)
  return _mm256_dpbusd_epi32(sum, bytes, signed_bytes);
#else
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(bytes, signed_bytes));
#endif
}

static inline __m256 total_of(__m256i products) {
#if defined(__AVX512VNNI__)
  return _mm256_cvtepi32_ps(products);
#else
  return _mm256_cvtepi32_ps(sum_of_pairs(products));
#endif
}

static inline void store_unit(const uint8_t *codes, const uint8_t *scale_bytes,
                              IntegerUnit &unit) {
  __m256i runs[4];
  expand_unit(codes, doubled_codes(0), runs);
  for (int j = 0; j < 4; ++j)
    _mm256_store_si256((__m256i *)unit.codes[j], runs[j]);
  const __m256i sums = _mm256_add_epi8(_mm256_add_epi8(runs[0], runs[1]),
                                       _mm256_add_epi8(runs[2], runs[3]));
  const __m256i total =
      sum_of_pairs(_mm256_maddubs_epi16(_mm256_set1_epi8(kCodeOffset), sums));
  const __m256 scales = half_scales(scale_bytes);
  _mm256_store_ps(unit.scales, scales);
  _mm256_store_ps(unit.offsets,
                  _mm256_mul_ps(_mm256_cvtepi32_ps(total),
                                _mm256_xor_ps(scales, _mm256_set1_ps(-0.0f))));
}

static inline __m256i broadcast_run(const uint8_t *codes) {
  int32_t run;
  std::memcpy(&run, codes, sizeof run);
  return _mm256_set1_epi32(run);
}

// sums (+)= one row, offset, times a panel of units [block][kPanelGroups].
static inline void multiply_integer_row(const IntegerRow &row,
                                        const IntegerUnit *units,
                                        int64_t blocks, float *sums,
                                        bool first) {
  __m256 sum[kPanelGroups];
  for (int g = 0; g < kPanelGroups; ++g)
    sum[g] = first ? _mm256_setzero_ps() : _mm256_load_ps(sums + 8 * g);
  for (int64_t b = 0; b < blocks; ++b) {
    __m256i runs[4];
    for (int j = 0; j < 4; ++j)
      runs[j] = broadcast_run(row.codes + kUnitBlock * b + 4 * j);
    const __m256 scale = _mm256_set1_ps(row.scales[b]);
#pragma GCC unroll 4
    for (int g = 0; g < kPanelGroups; ++g) {
      const IntegerUnit &unit = units[b * kPanelGroups + g];
      __m256i products = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        products =
            add_products(products, runs[j],
                         _mm256_load_si256((const __m256i *)unit.codes[j]));
      const __m256 product =
          _mm256_fmadd_ps(total_of(products), _mm256_load_ps(unit.scales),
                          _mm256_load_ps(unit.offsets));
      sum[g] = _mm256_fmadd_ps(product, scale, sum[g]);
    }
  }
  for (int g = 0; g < kPanelGroups; ++g)
    _mm256_store_ps(sums + 8 * g, sum[g]);
}

// sum + block `b` of a signed row times that of 8 columns.
static inline __m256 add_block(const IntegerRow &row, int64_t b,
                               const __m256i (&runs)[4], __m256 scale,
                               __m256 sum) {
  __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    pairs = _mm256_add_epi16(
        pairs, _mm256_maddubs_epi16(
                   runs[j], broadcast_run(row.codes + kUnitBlock * b + 4 * j)));
  const __m256 product = _mm256_fmadd_ps(
      _mm256_cvtepi32_ps(sum_of_pairs(pairs)), _mm256_set1_ps(row.scales[b]),
      _mm256_set1_ps(row.offsets[b]));
  return _mm256_fmadd_ps(product, scale, sum);
}

// sums (+)= `Rows` signed rows times the units of groups of columns, expanded
// on the way: memory is read once and nothing is written. The sums of groups
// are `apart` from each other.
template <int Rows, int Groups>
static inline void multiply_integer_groups(const IntegerRow *rows,
                                           const GroupUnits (&units)[Groups],
                                           int64_t blocks, float *sums,
                                           int64_t stride, int64_t apart,
                                           bool first) {
  const __m256i table = doubled_codes(kCodeOffset);
  __m256 sum[Groups][Rows];
  for (int g = 0; g < Groups; ++g)
    for (int r = 0; r < Rows; ++r)
      sum[g][r] = first ? _mm256_setzero_ps()
                        : _mm256_load_ps(sums + r * stride + g * apart);
  for (int64_t b = 0; b < blocks; ++b)
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      const uint8_t *codes = units[g].codes + kUnitBytes * b;
      _mm_prefetch(codes + kBytesAhead, _MM_HINT_T0);
      __m256i runs[4];
      expand_unit(codes, table, runs);
      const __m256 scale = half_scales(units[g].scales + kGroupColumns * b);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r)
        sum[g][r] = add_block(rows[r], b, runs, scale, sum[g][r]);
    }
  for (int g = 0; g < Groups; ++g)
    for (int r = 0; r < Rows; ++r)
      _mm256_store_ps(sums + r * stride + g * apart, sum[g][r]);
}

} // namespace steelyard::STEELYARD_ISA

#endif
