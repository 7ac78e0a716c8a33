#include "cpu/elementwise/elementwise.h"

#include "cpu/elementwise/circular.h"
#include "cpu/elementwise/functions.h"

namespace steelyard::STEELYARD_ISA {

#if defined(__clang__)
#define STEELYARD_EACH _Pragma("clang loop vectorize(assume_safety)")
#else
#define STEELYARD_EACH _Pragma("GCC ivdep")
#endif

// The elements of a call that are worked on at a time.
struct Chunk {
  int64_t rows, columns;
  int64_t offsets[kMostAccesses][kChunkRows]; // of the first of each row
  int64_t count() const { return rows * columns; }
};

template <class F>
static inline void each(float *out, int64_t n, const F &value) {
  // An input may be the output, but only at the same index.
  STEELYARD_EACH
  for (int64_t j = 0; j < n; ++j)
    out[j] = value(j);
}

template <class F>
static void unary(float *out, const float *a, int64_t n, const F &f) {
  each(out, n, [=](int64_t j) { return f(a[j]); });
}

template <class F>
static void binary(float *out, const float *a, const float *b, int64_t n,
                   const F &f) {
  each(out, n, [=](int64_t j) { return f(a[j], b[j]); });
}

static void round_all(Dtype dtype, float *values, int64_t n) {
  if (dtype == Dtype::bf16)
    unary(values, values, n, [](float x) { return round_to_bf16(x); });
  if (dtype == Dtype::f16)
    unary(values, values, n, [](float x) { return from_f16(to_f16(x)); });
}

static inline float truth(bool holds) { return holds ? 1.0f : 0.0f; }

// NaN if either is.
static inline float larger_of(float a, float b) {
  const float found = a > b ? a : b;
  return a == a ? found : a;
}

static inline float smaller_of(float a, float b) {
  const float found = a < b ? a : b;
  return a == a ? found : a;
}

// `turns`: how many quarters of a turn the angle is ahead.
static void sine_of(float *out, const float *a, int64_t n, int64_t turns) {
  bool is_small = true;
  for (int64_t j = 0; j < n; ++j)
    is_small &= magnitude_of(a[j]) < kSmallAngles;
  if (is_small)
    return unary(out, a, n, [=](float x) { return small_sine(x, turns); });
  for (int64_t j = 0; j < n; ++j)
    out[j] = sine(a[j], turns);
}

static void compute(Operation operation, float *out, const float *a,
                    const float *b, const float *c, int64_t n) {
  using enum Operation;
  switch (operation) {
  case load:
  case store:
    return;
  case cast:
    return unary(out, a, n, [](float x) { return x; });
  case neg:
    return unary(out, a, n, [](float x) { return -x; });
  case abs:
    return unary(out, a, n, [](float x) { return magnitude_of(x); });
  case sqrt:
    return unary(out, a, n, [](float x) { return __builtin_sqrtf(x); });
  case rsqrt:
    return unary(out, a, n, [](float x) { return 1.0f / __builtin_sqrtf(x); });
  case reciprocal:
    return unary(out, a, n, [](float x) { return 1.0f / x; });
  case exp:
    return unary(out, a, n, [](float x) { return exponential(x); });
  case tanh:
    return unary(out, a, n, [](float x) { return hyperbolic_tangent(x); });
  case erf:
    return unary(out, a, n, [](float x) { return error_function(x); });
  case sigmoid:
    return unary(out, a, n, [](float x) { return STEELYARD_ISA::sigmoid(x); });
  case cos:
    return sine_of(out, a, n, 1);
  case sin:
    return sine_of(out, a, n, 0);
  case relu:
    return unary(out, a, n, [](float x) { return STEELYARD_ISA::relu(x); });
  case silu:
    return unary(out, a, n, [](float x) { return STEELYARD_ISA::silu(x); });
  case gelu:
    return unary(out, a, n, [](float x) { return STEELYARD_ISA::gelu(x); });
  case gelu_tanh:
    return unary(out, a, n,
                 [](float x) { return STEELYARD_ISA::gelu_tanh(x); });
  case logical_not:
    return unary(out, a, n, [](float x) { return truth(!(x != 0)); });
  case add:
    return binary(out, a, b, n, [](float x, float y) { return x + y; });
  case sub:
    return binary(out, a, b, n, [](float x, float y) { return x - y; });
  case mul:
    return binary(out, a, b, n, [](float x, float y) { return x * y; });
  case div:
    return binary(out, a, b, n, [](float x, float y) { return x / y; });
  case maximum:
    return binary(out, a, b, n,
                  [](float x, float y) { return larger_of(x, y); });
  case minimum:
    return binary(out, a, b, n,
                  [](float x, float y) { return smaller_of(x, y); });
  case eq:
    return binary(out, a, b, n, [](float x, float y) { return truth(x == y); });
  case ne:
    return binary(out, a, b, n, [](float x, float y) { return truth(x != y); });
  case lt:
    return binary(out, a, b, n, [](float x, float y) { return truth(x < y); });
  case le:
    return binary(out, a, b, n, [](float x, float y) { return truth(x <= y); });
  case gt:
    return binary(out, a, b, n, [](float x, float y) { return truth(x > y); });
  case ge:
    return binary(out, a, b, n, [](float x, float y) { return truth(x >= y); });
  case logical_and:
    return binary(out, a, b, n,
                  [](float x, float y) { return truth((x != 0) & (y != 0)); });
  case logical_or:
    return binary(out, a, b, n,
                  [](float x, float y) { return truth((x != 0) | (y != 0)); });
  case tanh_backward:
    return binary(out, a, b, n,
                  [](float grad, float y) { return grad * (1.0f - y * y); });
  case sigmoid_backward:
    return binary(out, a, b, n,
                  [](float grad, float y) { return grad * (1.0f - y) * y; });
  case silu_backward:
    return binary(out, a, b, n,
                  [](float grad, float x) { return grad * silu_slope(x); });
  case gelu_backward:
    return binary(out, a, b, n,
                  [](float grad, float x) { return grad * gelu_slope(x); });
  case gelu_tanh_backward:
    return binary(out, a, b, n, [](float grad, float x) {
      return grad * gelu_tanh_slope(x);
    });
  case where:
    return each(out, n, [=](int64_t j) { return a[j] != 0 ? b[j] : c[j]; });
  }
}

template <class T> static inline float widened(T value) {
  return static_cast<float>(value);
}

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

static inline float widened(Bf16 value) { return from_bf16(value.bits); }
static inline float widened(F16 value) { return from_f16(value.bits); }

static inline void narrow_to(float &out, float value) { out = value; }
// Values of bf16 are rounded already.
static inline void narrow_to(Bf16 &out, float value) {
  out.bits = static_cast<uint16_t>(bits_of(value) >> 16);
}
static inline void narrow_to(F16 &out, float value) {
  out.bits = to_f16(value);
}
static inline void narrow_to(uint8_t &out, float value) { out = value != 0; }

template <class T>
static void load_row(const T *row, int64_t stride, int64_t n, float *out) {
  if (stride == 1) {
    for (int64_t j = 0; j < n; ++j)
      out[j] = widened(row[j]);
  } else if (stride == 0) {
    const float value = widened(*row);
    for (int64_t j = 0; j < n; ++j)
      out[j] = value;
  } else {
    for (int64_t j = 0; j < n; ++j)
      out[j] = widened(row[j * stride]);
  }
}

template <class T>
static void store_row(const float *values, int64_t stride, int64_t n, T *row) {
  if (stride == 1) {
    for (int64_t j = 0; j < n; ++j)
      narrow_to(row[j], values[j]);
  } else {
    for (int64_t j = 0; j < n; ++j)
      narrow_to(row[j * stride], values[j]);
  }
}

// Whether the elements of a chunk follow each other.
static inline bool is_run(const StridedAccess &access, int64_t inner_stride,
                          const Chunk &chunk) {
  return chunk.rows == 1 ? inner_stride == 1 || chunk.columns == 1
                         : access.is_dense;
}

template <class T>
static void load_rows(const StridedAccess &access, const int64_t *offsets,
                      int64_t stride, const Chunk &chunk, float *out) {
  const T *data = reinterpret_cast<const T *>(access.data);
  if (is_run(access, stride, chunk))
    return load_row(data + offsets[0], 1, chunk.count(), out);
  for (int64_t i = 0; i < chunk.rows; ++i)
    load_row(data + offsets[i], stride, chunk.columns, out + i * chunk.columns);
}

template <class T>
static void store_rows(const StridedAccess &access, const int64_t *offsets,
                       int64_t stride, const Chunk &chunk,
                       const float *values) {
  T *data = reinterpret_cast<T *>(access.data);
  if (is_run(access, stride, chunk))
    return store_row(values, 1, chunk.count(), data + offsets[0]);
  for (int64_t i = 0; i < chunk.rows; ++i)
    store_row(values + i * chunk.columns, stride, chunk.columns,
              data + offsets[i]);
}

static void load_chunk(const StridedAccess &access, const int64_t *offsets,
                       int64_t stride, const Chunk &chunk, float *out) {
  switch (access.type) {
  case ElementType::f32:
    return load_rows<float>(access, offsets, stride, chunk, out);
  case ElementType::bf16:
    return load_rows<Bf16>(access, offsets, stride, chunk, out);
  case ElementType::f16:
    return load_rows<F16>(access, offsets, stride, chunk, out);
  case ElementType::i1:
  case ElementType::ui8:
    return load_rows<uint8_t>(access, offsets, stride, chunk, out);
  case ElementType::si8:
    return load_rows<int8_t>(access, offsets, stride, chunk, out);
  case ElementType::si16:
    return load_rows<int16_t>(access, offsets, stride, chunk, out);
  case ElementType::si32:
    return load_rows<int32_t>(access, offsets, stride, chunk, out);
  case ElementType::si64:
    return load_rows<int64_t>(access, offsets, stride, chunk, out);
  case ElementType::f64:
    return;
  }
}

static void store_chunk(const StridedAccess &access, const int64_t *offsets,
                        int64_t stride, const Chunk &chunk,
                        const float *values) {
  switch (access.type) {
  case ElementType::f32:
    return store_rows<float>(access, offsets, stride, chunk, values);
  case ElementType::bf16:
    return store_rows<Bf16>(access, offsets, stride, chunk, values);
  case ElementType::f16:
    return store_rows<F16>(access, offsets, stride, chunk, values);
  default:
    return store_rows<uint8_t>(access, offsets, stride, chunk, values);
  }
}

// Finds where each row of a chunk begins.
static void locate(const ElementwiseCall &call, int64_t index, Chunk &chunk) {
  // Most calls have one row: then there is nothing to divide.
  const int64_t group = call.rows == 1 ? 0 : index / call.pieces;
  const int64_t piece = index - group * call.pieces;
  const int64_t first_row = group * call.chunk_rows;
  const int64_t first_column = piece * call.chunk_columns;
  const int last = call.dims - 1;
  chunk.rows = smaller(call.chunk_rows, call.rows - first_row);
  chunk.columns = smaller(call.chunk_columns, call.sizes[last] - first_column);
  int64_t position[kMostDims];
  int64_t rest = first_row;
  for (int d = last - 1; d >= 0; --d) {
    position[d] = rest % call.sizes[d];
    rest /= call.sizes[d];
  }
  int64_t at[kMostAccesses];
  for (int a = 0; a < call.access_count; ++a) {
    at[a] = first_column * call.accesses[a].strides[last];
    for (int d = 0; d < last; ++d)
      at[a] += position[d] * call.accesses[a].strides[d];
    chunk.offsets[a][0] = at[a];
  }
  for (int64_t i = 1; i < chunk.rows; ++i) {
    int d = last - 1;
    while (position[d] + 1 == call.sizes[d]) {
      for (int a = 0; a < call.access_count; ++a)
        at[a] -= position[d] * call.accesses[a].strides[d];
      position[d--] = 0;
    }
    ++position[d];
    for (int a = 0; a < call.access_count; ++a) {
      at[a] += call.accesses[a].strides[d];
      chunk.offsets[a][i] = at[a];
    }
  }
}

template <class T>
static void copy_rows(const ElementwiseCall &call, const Chunk &chunk) {
  const int last = call.dims - 1;
  const StridedAccess &from = call.accesses[0], &to = call.accesses[1];
  const int64_t from_stride = from.strides[last], to_stride = to.strides[last];
  const bool runs = (from_stride == 1 && to_stride == 1) || chunk.columns == 1;
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const T *source = reinterpret_cast<T *>(from.data) + chunk.offsets[0][i];
    T *target = reinterpret_cast<T *>(to.data) + chunk.offsets[1][i];
    if (runs)
      std::memcpy(target, source, chunk.columns * sizeof(T));
    else
      for (int64_t j = 0; j < chunk.columns; ++j)
        target[j * to_stride] = source[j * from_stride];
  }
}

static void copy_chunk(const ElementwiseCall &call, const Chunk &chunk) {
  switch (kElementSizes[static_cast<int>(call.accesses[0].type)]) {
  case 1:
    return copy_rows<uint8_t>(call, chunk);
  case 2:
    return copy_rows<uint16_t>(call, chunk);
  case 4:
    return copy_rows<uint32_t>(call, chunk);
  default:
    return copy_rows<uint64_t>(call, chunk);
  }
}

struct Registers {
  // Where the values of each are: in its own memory, or in a tensor.
  const float *values[kMostRegisters];
  alignas(64) float memory[kMostRegisters * kFewElements];
  int64_t size; // of each

  float *of(int number) { return memory + number * size; }
};

// The memory of a float32 tensor, where a chunk of it is in one piece.
static float *memory_of(const ElementwiseCall &call, int access,
                        const Chunk &chunk) {
  const StridedAccess &own = call.accesses[access];
  const bool direct = own.type == ElementType::f32 &&
                      is_run(own, own.strides[call.dims - 1], chunk);
  return direct ? reinterpret_cast<float *>(own.data) + chunk.offsets[access][0]
                : nullptr;
}

static void run_step(const ElementwiseCall &call, const ElementwiseStep &step,
                     const Chunk &chunk, Registers &registers) {
  float *memory =
      step.access < 0 ? nullptr : memory_of(call, step.access, chunk);
  const int64_t *offsets =
      step.access < 0 ? nullptr : chunk.offsets[step.access];
  if (step.operation == Operation::load) {
    registers.values[step.out] = memory ? memory : registers.of(step.out);
    if (!memory)
      load_chunk(call.accesses[step.access], offsets,
                 call.accesses[step.access].strides[call.dims - 1], chunk,
                 registers.of(step.out));
  } else if (step.operation == Operation::store) {
    // What was computed may be there already.
    if (!memory || memory != registers.values[step.in[0]])
      store_chunk(call.accesses[step.access], offsets,
                  call.accesses[step.access].strides[call.dims - 1], chunk,
                  registers.values[step.in[0]]);
  } else {
    float *out = memory ? memory : registers.of(step.out);
    compute(step.operation, out, registers.values[step.in[0]],
            registers.values[step.in[1]], registers.values[step.in[2]],
            chunk.count());
    round_all(step.dtype, out, chunk.count());
    registers.values[step.out] = out;
  }
}

void elementwise(const ElementwiseCall &call, int64_t begin, int64_t end) {
  Chunk chunk;
  if (call.is_copy) {
    for (int64_t index = begin; index < end; ++index) {
      locate(call, index, chunk);
      copy_chunk(call, chunk);
    }
    return;
  }
  Registers registers;
  registers.size = call.register_size;
  for (int r = 0; r < kMostRegisters; ++r)
    registers.values[r] = registers.memory;
  static_assert(kFewRegisters * kManyElements <= kMostRegisters * kFewElements);
  for (int64_t i = 0; i < call.constant_count; ++i) {
    registers.values[i] = registers.of(static_cast<int>(i));
    for (int64_t j = 0; j < call.chunk_rows * call.chunk_columns; ++j)
      registers.of(static_cast<int>(i))[j] = call.constants[i];
  }
  for (int64_t index = begin; index < end; ++index) {
    locate(call, index, chunk);
    for (int64_t i = 0; i < call.step_count; ++i)
      run_step(call, call.steps[i], chunk, registers);
  }
}

} // namespace steelyard::STEELYARD_ISA
