#include "cpu/rows/norm_backward.h"

#include "cpu/produce/row_statistics.h"

namespace steelyard::STEELYARD_ISA {

// What the gradient of a row needs of the whole row.
struct RowMeans {
  float mean, rstd;      // of x
  float mean_g, mean_gh; // of g, and of g * h
};

// Sums over some columns of a row, lane by lane.
struct Lanes {
  alignas(64) float grads[kSumLanes], grads_by_h[kSumLanes];
};

// Part of the weight, or what changes nothing where there is none.
static const float *weight_chunk(const Matrix &weight, int64_t first, int64_t n,
                                 float *buffer) {
  if (weight.data)
    return row_chunk(weight, 0, first, n, buffer);
  for (int64_t j = 0; j < n; ++j)
    buffer[j] = 1.0f;
  return buffer;
}

static float element_of(const Matrix &vector, int64_t row) {
  float buffer;
  return *row_chunk(vector, row, 0, 1, &buffer);
}

// Adds the terms of `n` columns to sums over rows, and makes those over
// columns.
static inline void add_chunk(const float *grad, const float *x,
                             const float *weight, int64_t n,
                             const RowMeans &row, float *sums_by_h, float *sums,
                             Lanes &lanes) {
  WidestFloats grads[kSumVectors] = {}, grads_by_h[kSumVectors] = {};
  const float mean = row.mean, rstd = row.rstd;
  const int64_t whole = n / kSumLanes * kSumLanes;
  for (int64_t j = 0; j < whole; j += kSumLanes)
#pragma GCC unroll 8
    for (int64_t v = 0; v < kSumVectors; ++v) {
      const int64_t at = j + v * kSumWidth;
      const auto given = load<WidestFloats>(grad + at);
      const WidestFloats h = (load<WidestFloats>(x + at) - mean) * rstd;
      store(sums_by_h + at, load<WidestFloats>(sums_by_h + at) + given * h);
      store(sums + at, load<WidestFloats>(sums + at) + given);
      const WidestFloats g = given * load<WidestFloats>(weight + at);
      grads[v] += g;
      grads_by_h[v] += g * h;
    }
  std::memcpy(lanes.grads, grads, sizeof grads);
  std::memcpy(lanes.grads_by_h, grads_by_h, sizeof grads_by_h);
  for (int64_t j = whole; j < n; ++j) {
    const float h = (x[j] - row.mean) * row.rstd, g = grad[j] * weight[j];
    sums_by_h[j] += grad[j] * h;
    sums[j] += grad[j];
    lanes.grads[j - whole] += g;
    lanes.grads_by_h[j - whole] += g * h;
  }
}

// Adds a row to sums over rows.
static RowMeans add_row(const NormBackwardCall &call, int64_t row,
                        float *sums) {
  alignas(64) float grads[kSumChunk], values[kSumChunk], weights[kSumChunk];
  const int64_t columns = call.x.columns;
  RowMeans found{element_of(call.mean, row), element_of(call.rstd, row), 0, 0};
  double totals[kSumLanes] = {}, totals_by_h[kSumLanes] = {};
  Lanes lanes;
  for (int64_t first = 0; first < columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, columns - first);
    add_chunk(row_chunk(call.grad, row, first, n, grads),
              row_chunk(call.x, row, first, n, values),
              weight_chunk(call.weight, first, n, weights), n, found,
              sums + first, sums + columns + first, lanes);
    for (int64_t l = 0; l < kSumLanes; ++l) {
      totals[l] += lanes.grads[l];
      totals_by_h[l] += lanes.grads_by_h[l];
    }
  }
  const double count = static_cast<double>(columns);
  found.mean_g = static_cast<float>(sum_of_lanes(totals) / count);
  found.mean_gh = static_cast<float>(sum_of_lanes(totals_by_h) / count);
  return found;
}

static inline void gradient_of_chunk(const float *grad, const float *x,
                                     const float *weight, int64_t n,
                                     const RowMeans &means,
                                     float *__restrict out) {
  const RowMeans row = means;
  for (int64_t j = 0; j < n; ++j) {
    const float h = (x[j] - row.mean) * row.rstd;
    out[j] = ((grad[j] * weight[j] - row.mean_g) - h * row.mean_gh) * row.rstd;
  }
}

static void write_gradient(const NormBackwardCall &call, int64_t row,
                           const RowMeans &means) {
  alignas(64) float grads[kSumChunk], values[kSumChunk], weights[kSumChunk],
      made[kSumChunk];
  const int64_t columns = call.x.columns;
  for (int64_t first = 0; first < columns; first += kSumChunk) {
    const int64_t n = smaller(kSumChunk, columns - first);
    const int64_t at = row * columns + first;
    const bool is_plain = call.dtype == Dtype::f32;
    float *out = is_plain ? static_cast<float *>(call.grad_x) + at : made;
    gradient_of_chunk(row_chunk(call.grad, row, first, n, grads),
                      row_chunk(call.x, row, first, n, values),
                      weight_chunk(call.weight, first, n, weights), n, means,
                      out);
    if (!is_plain)
      store_row(made, n, call.dtype, static_cast<uint16_t *>(call.grad_x) + at);
  }
}

static void widen_sums(float *sums, double *totals, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    totals[j] += sums[j];
    sums[j] = 0.0f;
  }
}

void norm_backward(const NormBackwardCall &call, int64_t begin, int64_t end) {
  const int64_t width = 2 * call.x.columns;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task * call.rows_of_task;
    const int64_t last = smaller(first + call.rows_of_task, call.x.rows);
    float *sums = call.sums + task * width;
    double *totals = call.totals + task * width;
    for (int64_t row = first; row < last; ++row) {
      const RowMeans means = add_row(call, row, sums);
      if (call.grad_x)
        write_gradient(call, row, means);
      if ((row + 1) % kNormRowsTogether == 0 || row + 1 == last)
        widen_sums(sums, totals, width);
    }
  }
}

// The sums of all tasks, for columns [first, last).
static void write_sums(const NormBackwardCall &call, int64_t first,
                       int64_t last, const double *totals, Dtype dtype,
                       void *out) {
  float found[kNormColumnsOfTask];
  for (int64_t j = first; j < last; ++j) {
    double sum = 0;
    for (int64_t task = 0; task < call.tasks; ++task)
      sum += totals[task * 2 * call.x.columns + j];
    found[j - first] = static_cast<float>(sum);
  }
  store_row(found, last - first, dtype,
            static_cast<char *>(out) + first * item_size(dtype));
}

void norm_vector_gradients(const NormBackwardCall &call, int64_t begin,
                           int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task * kNormColumnsOfTask;
    const int64_t last = smaller(first + kNormColumnsOfTask, call.x.columns);
    if (call.grad_weight)
      write_sums(call, first, last, call.totals, call.weight_dtype,
                 call.grad_weight);
    if (call.grad_bias)
      write_sums(call, first, last, call.totals + call.x.columns,
                 call.bias_dtype, call.grad_bias);
  }
}

} // namespace steelyard::STEELYARD_ISA
