// Elementwise programs: what stands between the GEMMs of a model, many ops of
// it in one walk over memory.
//
// A program is a list of loops, each over a box of up to kMostDims dims. Its
// steps load a value of each element, compute, and store: values are float32
// in registers of one chunk of elements, so that what is between a load and a
// store stays in the nearest cache. A step of bf16 or f16 rounds what it
// computes, as torch does. Truth values are 0 and 1.
//
// What is stored to a tensor is a value of its type, or 0.
//
// Tensors have any strides and no alignment beyond that of their type. What is
// stored overlaps nothing that is loaded, and each element is stored once.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/tiles/matrix.h"

namespace steelyard {

inline constexpr int kMostAccesses = 16; // of one loop
inline constexpr int kMostRegisters = 24;
// Of one chunk: fewer where a loop has many registers.
inline constexpr int64_t kFewElements = 512, kManyElements = 2048;
inline constexpr int kFewRegisters = 4;
inline constexpr int64_t kChunkRows = 64;

enum class ElementType : int {
  f32,
  bf16,
  f16,
  i1,
  ui8,
  si8,
  si16,
  si32,
  si64,
  f64 // is only copied
};

// In the order of the enum, as the IR spells them.
inline constexpr const char *kElementTypeNames[] = {
    "f32", "bf16", "f16", "i1", "ui8", "si8", "si16", "si32", "si64", "f64"};
static constexpr int64_t kElementSizes[] = {4, 2, 2, 1, 1, 1, 2, 4, 8, 8};

enum class Operation : int {
  load,
  store,
  cast,
  neg,
  abs,
  sqrt,
  rsqrt,
  reciprocal,
  exp,
  tanh,
  erf,
  sigmoid,
  cos,
  sin,
  relu,
  silu,
  gelu,
  gelu_tanh,
  logical_not,
  add,
  sub,
  mul,
  div,
  maximum,
  minimum,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  logical_and,
  logical_or,
  tanh_backward,
  sigmoid_backward,
  silu_backward,
  gelu_backward,
  gelu_tanh_backward,
  where
};

// In the order of the enum.
inline constexpr const char *kOperationNames[] = {"load",
                                                  "store",
                                                  "cast",
                                                  "neg",
                                                  "abs",
                                                  "sqrt",
                                                  "rsqrt",
                                                  "reciprocal",
                                                  "exp",
                                                  "tanh",
                                                  "erf",
                                                  "sigmoid",
                                                  "cos",
                                                  "sin",
                                                  "relu",
                                                  "silu",
                                                  "gelu",
                                                  "gelu_tanh",
                                                  "logical_not",
                                                  "add",
                                                  "sub",
                                                  "mul",
                                                  "div",
                                                  "maximum",
                                                  "minimum",
                                                  "eq",
                                                  "ne",
                                                  "lt",
                                                  "le",
                                                  "gt",
                                                  "ge",
                                                  "logical_and",
                                                  "logical_or",
                                                  "tanh_backward",
                                                  "sigmoid_backward",
                                                  "silu_backward",
                                                  "gelu_backward",
                                                  "gelu_tanh_backward",
                                                  "where"};

struct ElementwiseStep {
  Operation operation;
  Dtype dtype; // what the value is rounded to
  int out;     // a register
  int in[3];   // registers; a store stores the first
  int access;  // of a load or a store; of others, the float32 tensor that the
               // value is stored to later, or -1
};

// What a program says of a load or a store: element (d0, d1, ...) of the loop
// is that of a tensor whose index in `tensor_dim` is the sum of
// coefficient * d[loop_dim], plus the offsets.
struct ElementwiseTerm {
  int tensor_dim;
  int loop_dim; // -1 for an offset
  int64_t coefficient;
};

struct ElementwiseAccess {
  int tensor; // its number among those of a call
  ElementType type;
  bool is_store;
  std::vector<ElementwiseTerm> terms;
};

struct ElementwiseLoop {
  // Not negative, or -1 - i for size i of the call.
  std::vector<int64_t> sizes;
  std::vector<ElementwiseAccess> accesses;
  std::vector<ElementwiseStep> steps;
  std::vector<float> constants; // in the first registers
  int registers;
};

struct ElementwiseProgram {
  std::vector<ElementwiseLoop> loops;
};

// A tensor of a call; strides in elements, one for each dim.
struct ElementwiseTensor {
  void *data;
  const int64_t *strides;
};

// A loop with the memory of a call, as kernels take it: dims that every access
// walks as one are one.
struct StridedAccess {
  char *data;
  ElementType type;
  bool is_dense; // elements follow each other through all dims
  int64_t strides[kMostDims];
};

struct ElementwiseCall {
  int dims;
  int64_t sizes[kMostDims]; // at least one; the last is the length of a row
  int access_count;
  StridedAccess accesses[kMostAccesses];
  int64_t register_size, step_count, constant_count;
  const ElementwiseStep *steps;
  const float *constants;
  // A row is cut into pieces, or a chunk has several rows.
  int64_t rows, pieces, chunk_rows, chunk_columns;
  bool is_copy; // one load, one store of the same type: bytes are moved
};

#ifdef STEELYARD_ISA
namespace STEELYARD_ISA {
// Tasks: chunks; there are pieces * ceil(rows / chunk_rows).
void elementwise(const ElementwiseCall &call, int64_t begin, int64_t end);
} // namespace STEELYARD_ISA
#endif

} // namespace steelyard
