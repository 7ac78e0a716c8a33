// Columns of FP8 codes times a few float32 rows, decoded on the way to the
// sums. Included by kernel sources only.
//
// Shifted into place, the bits of a code are those of the float32
// value * 2^-120 (E4M3) or value * 2^-112 (E5M2), subnormal codes included.
// Codes that are NaN or infinite look finite that way, so the largest code is
// kept beside the sums.
#pragma once

#include "cpu/gemm/decode.h"
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// Codes that are decoded together, and a scale stands for a multiple of them.
static constexpr int64_t kChunk = 32;
// Chunks per turn of the loop: two cache lines, and whole blocks of any scale.
static constexpr int kChunksAtOnce = 4;

// The order in which the codes of a chunk come out: by their place in four
// bytes, the odd ones first.
static inline void arrange_chunk(float *row) {
  Words8 pairs[4], fours[4];
  for (int j = 0; j < 2; ++j) {
    const Words8 low = load<Words8>(row + 8 * j),
                 high = load<Words8>(row + 8 * j + 16);
    fours[2 * j] = join_low(low, high);
    fours[2 * j + 1] = join_high(low, high);
  }
  for (int j = 0; j < 2; ++j) {
    pairs[j] = zip_low(fours[2 * j], fours[2 * j + 1]);
    pairs[j + 2] = zip_high(fours[2 * j], fours[2 * j + 1]);
  }
  const Longs4 odd[2] = {as<Longs4>(pairs[2]), as<Longs4>(pairs[3])},
               even[2] = {as<Longs4>(pairs[0]), as<Longs4>(pairs[1])};
  store(row, zip_high(odd[0], odd[1]));
  store(row + 8, zip_high(even[0], even[1]));
  store(row + 16, zip_low(odd[0], odd[1]));
  store(row + 24, zip_low(even[0], even[1]));
}

// Where `arrange_chunk` puts value `q` of a row.
static inline int64_t arranged(int64_t q) {
  constexpr int places[4] = {3, 1, 2, 0};
  return q / kChunk * kChunk + 8 * places[q % 4] + q % kChunk / 4;
}

template <Element E> struct ChunkDecoder {
  static constexpr int kShift = E == Element::e4m3 ? 4 : 3;
  static constexpr uint16_t kMask = E == Element::e4m3 ? 0x87f0 : 0x8fe0;

  // 16 bytes in the high halves of 16 words, as bfloat16.
  static inline Words8 place(Halves16 words) {
    // An arithmetic shift to the right, by a multiplier: shifters are busy.
    const Halves16 power = broadcast(static_cast<uint16_t>(1 << (16 - kShift)));
    const Halves16 shifted = as<Halves16>(
        multiply_high(as<SignedHalves16>(words), as<SignedHalves16>(power)));
    return as<Words8>(shifted & kMask);
  }
  static inline void widen(Words8 placed, Floats8 &high, Floats8 &low) {
    high = as<Floats8>(placed & 0xffff0000u);
    low = as<Floats8>(placed << 16);
  }
  static inline void decode(Bytes32 codes, Floats8 (&values)[4]) {
    const Halves16 words = as<Halves16>(codes);
    widen(place(words), values[0], values[1]);
    widen(place(words << 8), values[2], values[3]);
  }
};

// A strip of k of some columns, and of the rows.
struct StripCodes {
  const uint8_t *codes; // of the first column
  int64_t codes_stride, columns;
  int64_t count;     // whole chunks of a column
  int64_t ahead;     // bytes to the codes that are wanted later
  const float *rows; // arranged
  int64_t row_stride;
};

// Of one column, while its strips come by.
struct ColumnSums {
  Floats8 total[kFewRows];
  Bytes32 largest; // codes, doubled, which drops their signs
  bool infinite_scale;
};

// Where scales are multiplied: nowhere, into the sums of a block, or into the
// values, for many rows.
enum class Scaling { none, sums, values };

struct NoScales {
  static constexpr Scaling kScaling = Scaling::none;
  static constexpr int kBlockChunks = 1;

  inline void start(int64_t) {}
  inline Floats8 at(int64_t) const { return Floats8{}; }
  inline bool infinite() const { return false; }
};

// E8M0, one per chunk.
template <Scaling S> struct ByteScales {
  static constexpr Scaling kScaling = S;
  static constexpr int kBlockChunks = 1;

  const GemmOperand &x;
  const float *table; // as panels hold them
  int64_t column, k;  // of the strip
  int64_t step;       // from column to column
  const uint8_t *bytes = nullptr;
  int64_t stride = x.k_stride;

  inline void start(int64_t c) {
    bytes = static_cast<const uint8_t *>(x.scales) +
            scale_index(x, column + c * step, k);
  }
  inline Floats8 at(int64_t block) const {
    return broadcast(table[bytes[block * stride]]);
  }
  inline bool infinite() const { return false; }
};

// Float32, one for 128 codes.
template <Scaling S> struct FloatScales {
  static constexpr Scaling kScaling = S;
  static constexpr int kBlockChunks = 4;

  const GemmOperand &x;
  int64_t column, k; // of the strip
  int64_t step;      // from column to column
  const float *scales = nullptr;
  int64_t stride = x.k_stride;
  double unit = x.unit;
  uint32_t largest = 0;

  inline void start(int64_t c) {
    scales = static_cast<const float *>(x.scales) +
             scale_index(x, column + c * step, k);
    largest = 0;
  }
  inline Floats8 at(int64_t block) {
    const float scale = scales[block * stride];
    const uint32_t magnitude = bits_of(scale) & kAbsMask;
    if (magnitude == kInfinity)
      largest = magnitude;
    return broadcast(panel_scale(scale, unit));
  }
  inline bool infinite() const { return largest == kInfinity; }
};

template <int Rows, int Chains> struct ChunkSums {
  Floats8 chains[Rows][Chains];

  [[gnu::always_inline]] inline ChunkSums() {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < Chains; ++c)
        chains[r][c] = Floats8{};
  }

  // += values times the rows, 8 of them.
  template <int Chain>
  [[gnu::always_inline]] inline void add(Floats8 values, const float *rows,
                                         int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
      chains[r][Chain % Chains] = multiply_add(
          values, load<Floats8>(rows + r * stride), chains[r][Chain % Chains]);
  }

  [[gnu::always_inline]] inline void add_scaled(const ChunkSums &sums,
                                                Floats8 scale) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < Chains; ++c)
        chains[r][c] = multiply_add(sums.chains[r][c], scale, chains[r][c]);
  }

  [[gnu::always_inline]] inline void add_to(Floats8 *total) const {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      Floats8 sum = chains[r][0];
#pragma GCC unroll 4
      for (int c = 1; c < Chains; ++c)
        sum += chains[r][c];
      total[r] += sum;
    }
  }
};

template <Element E, Scaling S, int Rows, int Chains>
[[gnu::always_inline]] static inline void
add_chunk(const uint8_t *codes, const float *rows, int64_t row_stride,
          Floats8 scale, Bytes32 &largest, ChunkSums<Rows, Chains> &sums) {
  const Bytes32 bytes = load<Bytes32>(codes);
  largest = maximum(largest, bytes + bytes);
  Floats8 values[4];
  ChunkDecoder<E>::decode(bytes, values);
  if constexpr (S == Scaling::values)
    for (Floats8 &value : values)
      value *= scale;
  sums.template add<0>(values[0], rows, row_stride);
  sums.template add<1>(values[1], rows + 8, row_stride);
  sums.template add<2>(values[2], rows + 16, row_stride);
  sums.template add<3>(values[3], rows + 24, row_stride);
}

// `Count` chunks from `first` of a column, whole blocks of them.
template <Element E, int Count, class Scales, class Sums>
[[gnu::always_inline]] static inline void
add_chunks(const StripCodes &strip, const uint8_t *codes, int64_t first,
           Scales &scales, Bytes32 &largest, Sums &sums) {
  constexpr int block =
      Count < Scales::kBlockChunks ? Count : Scales::kBlockChunks;
#pragma GCC unroll 2
  for (int line = 0; line < Count; line += 2)
    __builtin_prefetch(codes + (first + line) * kChunk + strip.ahead);
#pragma GCC unroll 4
  for (int chunk = 0; chunk < Count; chunk += block) {
    const Floats8 scale = scales.at((first + chunk) / Scales::kBlockChunks);
    Sums products;
    Sums &target = Scales::kScaling == Scaling::sums ? products : sums;
#pragma GCC unroll 4
    for (int64_t r = first + chunk; r < first + chunk + block; ++r)
      add_chunk<E, Scales::kScaling>(codes + r * kChunk,
                                     strip.rows + r * kChunk, strip.row_stride,
                                     scale, largest, target);
    if constexpr (Scales::kScaling == Scaling::sums)
      sums.add_scaled(products, scale);
  }
}

// One chain of sums would wait for itself, unless each block starts another.
template <class Scales> constexpr int chains_of(int rows) {
  constexpr bool by_chunk =
      Scales::kScaling == Scaling::sums && Scales::kBlockChunks == 1;
  return rows > 4 || by_chunk ? 1 : 2;
}

// One column: total[r] += the products of row r.
template <Element E, int Rows, class Scales>
[[gnu::always_inline]] static inline void
sum_column(const StripCodes &strip, const uint8_t *codes, Scales &scales,
           Floats8 *total, Bytes32 &largest) {
  ChunkSums<Rows, chains_of<Scales>(Rows)> sums;
  Bytes32 most = largest;
  int64_t chunk = 0;
  for (; chunk + kChunksAtOnce <= strip.count; chunk += kChunksAtOnce)
    add_chunks<E, kChunksAtOnce>(strip, codes, chunk, scales, most, sums);
  for (; chunk < strip.count; ++chunk)
    add_chunks<E, 1>(strip, codes, chunk, scales, most, sums);
  largest = most;
  sums.add_to(total);
}

// At most kStreams columns side by side, for one row; missing ones repeat the
// last, so that a sum is the same in any company. The largest code is that of
// all of them.
template <Element E, class Scales>
[[gnu::noinline]] static void sum_streams(const StripCodes &given,
                                          const Scales &scales,
                                          ColumnSums *columns) {
  constexpr int together = Scales::kBlockChunks > 2 ? Scales::kBlockChunks : 2;
  const StripCodes strip = given;
  ChunkSums<1, chains_of<Scales>(1)> sums[kStreams];
  Scales of[kStreams] = {scales, scales, scales, scales};
  const uint8_t *codes[kStreams];
  for (int64_t c = 0; c < kStreams; ++c) {
    const int64_t column = smaller(c, strip.columns - 1);
    of[c].start(column);
    codes[c] = strip.codes + column * strip.codes_stride;
  }
  Bytes32 largest = Bytes32{};
  int64_t chunk = 0;
  for (; chunk + together <= strip.count; chunk += together)
#pragma GCC unroll 4
    for (int64_t c = 0; c < kStreams; ++c)
      add_chunks<E, together>(strip, codes[c], chunk, of[c], largest, sums[c]);
  for (; chunk < strip.count; ++chunk)
#pragma GCC unroll 4
    for (int64_t c = 0; c < kStreams; ++c)
      add_chunks<E, 1>(strip, codes[c], chunk, of[c], largest, sums[c]);
  for (int64_t c = 0; c < strip.columns; ++c) {
    sums[c].add_to(columns[c].total);
    columns[c].largest = maximum(columns[c].largest, largest);
    columns[c].infinite_scale |= of[c].infinite();
  }
}

// Every column of the strip, for `Rows` rows from `row`.
template <Element E, int Rows, class Scales>
[[gnu::noinline]] static void sum_strip(const StripCodes &given, Scales scales,
                                        int64_t row, ColumnSums *sums) {
  const StripCodes strip = given;
  for (int64_t c = 0; c < strip.columns; ++c) {
    scales.start(c);
    sum_column<E, Rows>(strip, strip.codes + c * strip.codes_stride, scales,
                        sums[c].total + row, sums[c].largest);
    sums[c].infinite_scale |= scales.infinite();
  }
}

} // namespace steelyard::STEELYARD_ISA
