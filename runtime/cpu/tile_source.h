// Where kernels get their tiles: a matrix, or a producer. Included by kernel
// sources only.
#pragma once

#include "produce.h"
#include "row_statistics.h"

namespace steelyard::STEELYARD_ISA {

// One NaN, since the bits of others depend on the order of operands.
static inline float canonical(float value) {
  return value == value ? value : float_of(0x7fc00000);
}

// In place, kept as float32.
static inline void round_row(Dtype dtype, float *values, int64_t n) {
  if (dtype == Dtype::bf16)
    for (int64_t j = 0; j < n; ++j)
      values[j] = round_to_bf16(values[j]);
  else if (dtype == Dtype::f16)
    for (int64_t j = 0; j < n; ++j)
      values[j] = from_f16(to_f16(canonical(values[j])));
  else
    for (int64_t j = 0; j < n; ++j)
      values[j] = canonical(values[j]);
}

static inline void normalize_row(const float *x, int64_t n,
                                 const RowStatistics &row, const float *weight,
                                 const float *bias, float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] =
        ((x[j] - row.mean) - row.mean_rest) * row.scale * weight[j] + bias[j];
}

static inline void multiply_silu(const float *a, const float *b, int64_t n,
                                 float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] = silu(a[j]) * b[j];
}

static inline void add_rows(const float *a, const float *b, int64_t n,
                            float *out) {
  for (int64_t j = 0; j < n; ++j)
    out[j] = a[j] + b[j];
}

class TileSource {
public:
  TileSource(const Matrix &x, const Producer *producer, const Tiling &tiling)
      : x_(x), producer_(producer), tiling_(tiling) {}

  // Valid until the next one.
  Tile load(int64_t index) {
    return producer_ ? produce(*producer_, index)
                     : load_tile(x_, tiling_, index, staging_);
  }

private:
  Tile produce(const Producer &producer, int64_t index) {
    const Tile a = load_tile(producer.inputs[0], tiling_, index, staging_);
    const Tile b =
        producer.inputs[1].data
            ? load_tile(producer.inputs[1], tiling_, index, second_staging_)
            : a;
    if (producer.is_norm())
      prepare_norm(producer, a);
    Tile tile = a;
    tile.data = staging_.values;
    tile.stride = tiling_.columns;
    for (int64_t i = 0; i < tile.rows; ++i) {
      float *out = staging_.values + i * tile.stride;
      produce_row(producer, i, a.at(i), b.at(i), tile.columns, out);
      round_row(producer.dtype, out, tile.columns);
    }
    return tile;
  }

  // Values may be read and written in one place.
  void produce_row(const Producer &producer, int64_t i, const float *a,
                   const float *b, int64_t n, float *out) const {
    switch (producer.kind) {
    case ProducerKind::activation:
      if (a != out)
        std::memcpy(out, a, n * sizeof *out);
      return activate(producer.activation, out, n);
    case ProducerKind::silu_and_multiply:
      return multiply_silu(a, b, n, out);
    case ProducerKind::add:
      return add_rows(a, b, n, out);
    case ProducerKind::layer_norm:
    case ProducerKind::rms_norm:
      return normalize_row(a, n, statistics_[i], weight_, bias_, out);
    }
  }

  // Tiles of the same rows follow each other, and share what is known of them.
  void prepare_norm(const Producer &producer, const Tile &tile) {
    load_vector(producer.weight, tile, 1.0f, weight_);
    load_vector(producer.bias, tile, -0.0f, bias_);
    if (tile.row == statistics_row_)
      return;
    const bool centered = producer.kind == ProducerKind::layer_norm;
    for (int64_t i = 0; i < tile.rows; ++i)
      statistics_[i] = row_statistics(producer.inputs[0], tile.row + i,
                                      centered, producer.epsilon);
    statistics_row_ = tile.row;
  }

  // The columns of a tile, or what changes nothing where there is no vector.
  static void load_vector(const Matrix &vector, const Tile &tile, float neutral,
                          float *out) {
    for (int64_t j = 0; !vector.data && j < tile.columns; ++j)
      out[j] = neutral;
    for (int64_t first = 0; vector.data && first < tile.columns;
         first += kSumChunk) {
      const int64_t n = smaller(kSumChunk, tile.columns - first);
      const float *values =
          row_chunk(vector, 0, tile.column + first, n, out + first);
      if (values != out + first)
        std::memcpy(out + first, values, n * sizeof *out);
    }
  }

  const Matrix &x_;
  const Producer *const producer_;
  const Tiling &tiling_;
  int64_t statistics_row_ = -1;
  Staging staging_, second_staging_;
  RowStatistics statistics_[kTileSide];
  alignas(64) float weight_[kTileColumns], bias_[kTileColumns];
};

} // namespace steelyard::STEELYARD_ISA
