#include "cpu/rows/sums.h"

#include "cpu/simd/simd.h"
#include "cpu/tiles/row_chunk.h"

namespace steelyard::STEELYARD_ISA {

static constexpr int64_t kLanes = 8, kInterleaved = 4, kLevels = 4;
static constexpr int64_t kWidest = kLanes * kInterleaved;
static_assert(kSumsOfTask % kWidest == 0);

// Partial sums of neighbouring columns, each level of sums of the one before.
struct alignas(64) Levels {
  float sums[kLevels][kSumsOfTask];
};

static inline void add(float *sums, const float *values, int64_t n) {
  for (int64_t j = 0; j < n; ++j)
    sums[j] += values[j];
}

// Rows [first, first + n) of some columns of a matrix.
struct MatrixRows {
  const Matrix &x;
  int64_t column, width;

  void add_to(float *sums, int64_t first, int64_t n) const {
    const bool is_plain = x.dtype == Dtype::f32 && x.column_stride == 1;
    int64_t j = 0;
    for (; is_plain && j + kLanes <= width; j += kLanes) {
      const float *values = static_cast<const float *>(x.data) +
                            first * x.row_stride + column + j;
      Floats8 sum = load<Floats8>(sums + j);
      for (int64_t i = 0; i < n; ++i)
        sum += load<Floats8>(values + i * x.row_stride);
      store(sums + j, sum);
    }
    float buffer[kSumsOfTask];
    for (int64_t i = 0; j < width && i < n; ++i)
      add(sums + j, row_chunk(x, first + i, column + j, width - j, buffer),
          width - j);
  }
};

// Halves as torch reads them where they are contiguous: each 16 of them are 8
// sums of two.
struct PairRows {
  const Matrix &x; // a row of it is `width` pairs
  int64_t width;

  void add_to(float *sums, int64_t first, int64_t n) const {
    float buffer[2 * kWidest];
    for (int64_t i = first; i < first + n; ++i) {
      const float *values = row_chunk(x, i, 0, 2 * width, buffer);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t at = j / kLanes * 2 * kLanes + j % kLanes;
        sums[j] += values[at] + values[at + kLanes];
      }
    }
  }
};

// How many numbers are added before the sum goes to the next level, as a power
// of 2.
static int level_power(int64_t size) {
  int bits = 0;
  while ((int64_t{1} << bits) < size)
    ++bits;
  return bits / kLevels > 4 ? bits / kLevels : 4;
}

// The sums of columns, one row after the other: the first `width` of level 0.
template <class Rows>
static void cascade(const Rows &rows, int64_t size, int64_t width,
                    Levels &levels) {
  const int power = level_power(size);
  const int64_t step = int64_t{1} << power;
  for (float (&level)[kSumsOfTask] : levels.sums)
    for (int64_t j = 0; j < width; ++j)
      level[j] = 0.0f;
  int64_t i = 0;
  while (i + step <= size) {
    rows.add_to(levels.sums[0], i, step);
    i += step;
    for (int64_t l = 1; l < kLevels; ++l) {
      add(levels.sums[l], levels.sums[l - 1], width);
      for (int64_t j = 0; j < width; ++j)
        levels.sums[l - 1][j] = 0.0f;
      if (i & ((step - 1) << (l * power)))
        break;
    }
  }
  rows.add_to(levels.sums[0], i, size - i);
  for (int64_t l = 1; l < kLevels; ++l)
    add(levels.sums[0], levels.sums[l], width);
}

static const void *element(const Matrix &x, int64_t index) {
  const int64_t size = item_size(x.dtype);
  return static_cast<const char *>(x.data) + index * size;
}

// The sums of columns, each by four cascades that take turns.
static void interleaved(const Matrix &x, int64_t column, int64_t width,
                        float *out) {
  Levels levels;
  Matrix turns = x;
  turns.rows = x.rows / kInterleaved;
  turns.row_stride = x.row_stride * kInterleaved;
  for (int64_t turn = 0; turn < kInterleaved; ++turn) {
    turns.data = element(x, turn * x.row_stride);
    cascade(MatrixRows{turns, column, width}, turns.rows, width, levels);
    if (turn == 0) {
      const int64_t whole = turns.rows * kInterleaved;
      MatrixRows{x, column, width}.add_to(levels.sums[0], whole,
                                          x.rows - whole);
      std::memcpy(out, levels.sums[0], width * sizeof *out);
    } else {
      add(out, levels.sums[0], width);
    }
  }
}

// The sum of one column, in the order for contiguous numbers.
static float sum_of_run(const Matrix &x, int64_t column, bool in_pairs) {
  const int64_t lane = in_pairs ? 2 : 1, vector = kLanes * lane;
  const int64_t turns = x.rows / (vector * kInterleaved);
  const Matrix wide{element(x, column * x.column_stride),
                    x.dtype,
                    turns,
                    vector * kInterleaved,
                    vector * kInterleaved * x.row_stride,
                    x.row_stride};
  Levels levels;
  if (in_pairs)
    cascade(PairRows{wide, kWidest}, turns, kWidest, levels);
  else
    cascade(MatrixRows{wide, 0, kWidest}, turns, kWidest, levels);
  float *lanes = levels.sums[0];
  const int64_t done = turns * kInterleaved, vectors = x.rows / vector;
  Matrix rest = wide;
  rest.data = element(wide, done * vector * x.row_stride);
  rest.row_stride = vector * x.row_stride;
  if (in_pairs)
    PairRows{rest, kLanes}.add_to(lanes, 0, vectors - done);
  else
    MatrixRows{rest, 0, kLanes}.add_to(lanes, 0, vectors - done);
  for (int64_t turn = 1; turn < kInterleaved; ++turn)
    add(lanes, lanes + turn * kLanes, kLanes);
  float sum = 0.0f, buffer[2 * kLanes];
  const int64_t left = x.rows - vectors * vector;
  rest.data = element(wide, vectors * vector * x.row_stride);
  const float *values = row_chunk(rest, 0, 0, left, buffer);
  for (int64_t i = 0; i < left; ++i)
    sum += values[i];
  for (int64_t l = 0; l < kLanes; ++l)
    sum += lanes[l];
  return sum;
}

// The sums of columns [first, last).
static void sum_columns(const SumsCall &call, int64_t first, int64_t last,
                        float *out) {
  const Matrix &x = call.x;
  // Of other dtypes than its result's, torch adds up a copy in float32.
  const bool in_pairs =
      x.dtype != Dtype::f32 && x.dtype == call.dtype && !call.is_mean;
  const int64_t vector = in_pairs ? 2 * kLanes : kLanes;
  if ((call.of_rows || x.columns == 1) && x.rows >= vector) {
    for (int64_t j = first; j < last; ++j)
      out[j - first] = sum_of_run(x, j, in_pairs);
    return;
  }
  const int64_t together = x.columns >= vector ? kWidest : kInterleaved;
  const int64_t whole = call.of_rows ? 0 : x.columns / together * together;
  const int64_t middle = whole < first ? first : smaller(whole, last);
  if (first < middle) {
    Levels levels;
    cascade(MatrixRows{x, first, middle - first}, x.rows, middle - first,
            levels);
    std::memcpy(out, levels.sums[0], (middle - first) * sizeof *out);
  }
  if (middle < last)
    interleaved(x, middle, last - middle, out + (middle - first));
}

void sums(const SumsCall &call, int64_t begin, int64_t end) {
  const int64_t size = item_size(call.dtype);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task * kSumsOfTask;
    const int64_t last = smaller(first + kSumsOfTask, call.x.columns);
    alignas(64) float found[kSumsOfTask];
    sum_columns(call, first, last, found);
    const float count = static_cast<float>(call.x.rows);
    for (int64_t j = 0; call.is_mean && j < last - first; ++j)
      found[j] /= count;
    store_row(found, last - first, call.dtype,
              static_cast<char *>(call.out) + first * size);
  }
}

} // namespace steelyard::STEELYARD_ISA
