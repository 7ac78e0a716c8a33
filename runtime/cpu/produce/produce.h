// Producers: what makes a matrix out of its inputs, in float32, rounded to a
// dtype. Quantizing reads a producer's tiles as it reads those of a matrix, so
// what is between the two never is in memory.
#pragma once

#include "cpu/produce/activations.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

enum class ProducerKind : int {
  activation,
  silu_and_multiply,
  add,
  layer_norm,
  rms_norm
};

// In the order of the enum: callers know kinds by name.
inline constexpr const char *kProducerNames[] = {
    "activation", "silu_and_multiply", "add", "layer_norm", "rms_norm"};

// What a norm knows of a row.
struct RowStatistics {
  float mean, mean_rest; // their sum is the mean, to twice the precision
  float scale;
};

struct Producer {
  ProducerKind kind;
  Activation activation;
  Matrix inputs[2];    // the second of silu_and_multiply and add only
  Matrix weight, bias; // of norms: (1, columns), or null data for none
  double epsilon;
  Dtype dtype; // what values are rounded to

  // Of norms: (rows,), null where nobody reads them after the first pass.
  RowStatistics *statistics;
  bool statistics_known;
  // Of norms, what their gradients need: mean and scale of each row, contiguous
  // and of their own dtype, or null.
  void *means, *scales;
  Dtype statistics_dtype;

  // Norms read a whole row before its first value is known.
  bool is_norm() const {
    return kind == ProducerKind::layer_norm || kind == ProducerKind::rms_norm;
  }
};

struct ProduceCall {
  Matrix x; // its shape and dtype; there is no data
  Tiling tiling;
  const Producer *producer;
  void *out;      // contiguous rows
  uint32_t *amax; // if not null: bits of the amax of what is produced
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
template <class T> struct TileOf;
struct ProducerScratch;
// A tile of what is produced, in `scratch` until the next one. Tiles of the
// same rows should follow each other: they share what is known of these.
TileOf<float> produce_tile(const Producer &producer, const Tiling &tiling,
                           int64_t index, ProducerScratch &scratch);
void produce(const ProduceCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
