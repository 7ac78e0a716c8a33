#include "cpu/produce/produce.h"

#include "cpu/produce/activate.h"
#include "cpu/produce/row_statistics.h"
#include "cpu/tiles/tile_source.h"

namespace steelyard::STEELYARD_ISA {

// Kept as float32. One NaN, since the bits of others depend on the order of
// operands.
template <Dtype dtype> static inline float rounded(float value) {
  if constexpr (dtype == Dtype::bf16)
    return round_to_bf16(value);
  const float canonical = value == value ? value : float_of(0x7fc00000);
  if constexpr (dtype == Dtype::f16)
    return from_f16(to_f16(canonical));
  return canonical;
}

template <Dtype dtype, class F>
static void fill_as(float *out, int64_t n, const F &value) {
  // An input may be the output, but only at the same index.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (int64_t j = 0; j < n; ++j)
    out[j] = rounded<dtype>(value(j));
}

template <class F>
static void fill(Dtype dtype, float *out, int64_t n, const F &value) {
  switch (dtype) {
  case Dtype::f32:
    return fill_as<Dtype::f32>(out, n, value);
  case Dtype::bf16:
    return fill_as<Dtype::bf16>(out, n, value);
  case Dtype::f16:
    return fill_as<Dtype::f16>(out, n, value);
  }
}

static void activate_row(const Producer &producer, const float *x, int64_t n,
                         float *out) {
  switch (producer.activation) {
  case Activation::none:
    return fill(producer.dtype, out, n, [=](int64_t j) { return x[j]; });
  case Activation::relu:
    return fill(producer.dtype, out, n, [=](int64_t j) { return relu(x[j]); });
  case Activation::gelu:
    return fill(producer.dtype, out, n, [=](int64_t j) { return gelu(x[j]); });
  case Activation::gelu_tanh:
    return fill(producer.dtype, out, n,
                [=](int64_t j) { return gelu_tanh(x[j]); });
  case Activation::silu:
    return fill(producer.dtype, out, n, [=](int64_t j) { return silu(x[j]); });
  }
}

static void normalize_row(const Producer &producer, const RowStatistics &row,
                          const ProducerScratch &scratch, const float *x,
                          int64_t n, float *out) {
  const float *weight = scratch.weight, *bias = scratch.bias;
  const float mean = row.mean, mean_rest = row.mean_rest, scale = row.scale;
  fill(producer.dtype, out, n, [=](int64_t j) {
    return ((x[j] - mean) - mean_rest) * scale * weight[j] + bias[j];
  });
}

static void produce_row(const Producer &producer, const RowStatistics &row,
                        const ProducerScratch &scratch, const float *a,
                        const float *b, int64_t n, float *out) {
  switch (producer.kind) {
  case ProducerKind::activation:
    return activate_row(producer, a, n, out);
  case ProducerKind::silu_and_multiply:
    return fill(producer.dtype, out, n,
                [=](int64_t j) { return silu(a[j]) * b[j]; });
  case ProducerKind::add:
    return fill(producer.dtype, out, n, [=](int64_t j) { return a[j] + b[j]; });
  case ProducerKind::layer_norm:
  case ProducerKind::rms_norm:
    return normalize_row(producer, row, scratch, a, n, out);
  }
}

// The columns of a tile, or what changes nothing where there is no vector.
static const float *load_vector(const Matrix &vector, const Tile &tile,
                                float neutral, float *buffer) {
  if (vector.data)
    return row_chunk(vector, 0, tile.column, tile.columns, buffer);
  for (int64_t j = 0; j < tile.columns; ++j)
    buffer[j] = neutral;
  return buffer;
}

static void keep_for_gradients(const Producer &producer, int64_t row,
                               const RowStatistics &found) {
  const int64_t at = row * item_size(producer.statistics_dtype);
  store_row(&found.mean, 1, producer.statistics_dtype,
            static_cast<char *>(producer.means) + at);
  store_row(&found.scale, 1, producer.statistics_dtype,
            static_cast<char *>(producer.scales) + at);
}

static void find_statistics(const Producer &producer, const Tile &tile,
                            ProducerScratch &scratch) {
  const bool centered = producer.kind == ProducerKind::layer_norm;
  for (int64_t i = 0; i < tile.rows; ++i) {
    const int64_t row = tile.row + i;
    scratch.statistics[i] = producer.statistics_known
                                ? producer.statistics[row]
                                : row_statistics(producer.inputs[0], row,
                                                 centered, producer.epsilon);
    if (producer.statistics && !producer.statistics_known)
      producer.statistics[row] = scratch.statistics[i];
    if (producer.means)
      keep_for_gradients(producer, row, scratch.statistics[i]);
  }
  scratch.statistics_row = tile.row;
}

static Tile produce_into(const Producer &producer, const Tiling &tiling,
                         int64_t index, ProducerScratch &scratch, float *out,
                         int64_t stride) {
  Tile tile{locate_tile(tiling, producer.inputs[0].rows,
                        producer.inputs[0].columns, index),
            nullptr};
  if (producer.is_norm()) {
    scratch.weight =
        load_vector(producer.weight, tile, 1.0f, scratch.weight_values);
    scratch.bias = load_vector(producer.bias, tile, -0.0f, scratch.bias_values);
    if (tile.row != scratch.statistics_row)
      find_statistics(producer, tile, scratch);
  }
  const Tile a = load_tile(producer.inputs[0], tiling, index, scratch.values);
  const Tile b = producer.inputs[1].data ? load_tile(producer.inputs[1], tiling,
                                                     index, scratch.second)
                                         : a;
  tile.data = out;
  tile.stride = stride;
  for (int64_t i = 0; i < tile.rows; ++i)
    produce_row(producer, scratch.statistics[i], scratch, a.at(i), b.at(i),
                tile.columns, out + i * stride);
  return tile;
}

Tile produce_tile(const Producer &producer, const Tiling &tiling, int64_t index,
                  ProducerScratch &scratch) {
  return produce_into(producer, tiling, index, scratch, scratch.values.values,
                      tiling.columns);
}

// A tile of a call's result, which is float32: where it is to be.
static Tile produce_to_result(const ProduceCall &call, int64_t index,
                              ProducerScratch &scratch) {
  const TilePlace place =
      locate_tile(call.tiling, call.x.rows, call.x.columns, index);
  float *out = static_cast<float *>(call.out) + place.row * call.x.columns +
               place.column;
  return produce_into(*call.producer, call.tiling, index, scratch, out,
                      call.x.columns);
}

void produce(const ProduceCall &call, int64_t begin, int64_t end) {
  ProducerScratch scratch;
  const bool is_plain = call.x.dtype == Dtype::f32;
  uint32_t amax = 0;
  for (int64_t index = begin; index < end; ++index) {
    const Tile tile =
        is_plain ? produce_to_result(call, index, scratch)
                 : produce_tile(*call.producer, call.tiling, index, scratch);
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t at = (tile.row + i) * call.x.columns + tile.column;
      if (!is_plain)
        store_row(tile.at(i), tile.columns, call.x.dtype,
                  static_cast<uint16_t *>(call.out) + at);
      if (!call.amax)
        continue;
      const uint32_t found = amax_bits(tile.at(i), tile.columns);
      amax = found > amax ? found : amax;
    }
  }
  if (call.amax)
    atomic_max(call.amax, amax);
}

} // namespace steelyard::STEELYARD_ISA
