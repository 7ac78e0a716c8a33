// Kernels are compiled once per instruction set and chosen at run time.
//
// To add a kernel family, in the room it belongs to:
// 1. `<family>.h`: a plain struct with everything one call needs, layouts and
//    alignment stated, and the declaration of the range function inside
//    `#ifdef STEELYARD_ISA` / `namespace steelyard::STEELYARD_ISA`.
// 2. `<family>.cpp`: the range function, in that namespace, listed under the
//    room's kernels in CMakeLists.txt. It handles tasks [begin, end) of a split
//    that follows from the shape alone. Helpers are `static` or live in the ISA
//    namespace, and no standard template is called: the linker keeps one copy
//    of a shared inline function, which could be the AVX-512 one.
// 3. a pointer in KernelTable and in `kernel_table.cpp`.
// 4. `run_<family>.cpp`, declared in `operations.h`: calls `parallel_for(tasks,
//    grain, threads, ...)` on `kernels()`, with no Python in sight.
// 5. `bind/<family>.cpp`: checks nothing that Python checked, releases the GIL
//    and calls it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace steelyard {

struct AmaxCall;
struct AttentionCall;
struct AttentionGradients;
struct QuantizeCall;
struct DequantizeCall;
struct ElementwiseCall;
struct TransposeCall;
struct ProduceCall;
struct NormBackwardCall;
struct RowsCall;
struct AddRowsCall;
struct SumsCall;
struct GemmCall;
struct GemmOperand;
struct ScaleRange;

struct KernelTable {
  const char *name;
  bool has_vectors; // as simd.h says: some GEMMs need them
  void (*amax)(const AmaxCall &call, int64_t begin, int64_t end);
  void (*attend_blocks)(const AttentionCall &call, int64_t begin, int64_t end);
  void (*attend_few)(const AttentionCall &call, int64_t begin, int64_t end);
  void (*merge_few)(const AttentionCall &call, int64_t begin, int64_t end);
  void (*attend_backward)(const AttentionGradients &call, int64_t begin,
                          int64_t end);
  void (*quantize)(const QuantizeCall &call, int64_t begin, int64_t end);
  void (*dequantize)(const DequantizeCall &call, int64_t begin, int64_t end);
  void (*elementwise)(const ElementwiseCall &call, int64_t begin, int64_t end);
  void (*transpose)(const TransposeCall &call, int64_t begin, int64_t end);
  void (*produce)(const ProduceCall &call, int64_t begin, int64_t end);
  void (*rows)(const RowsCall &call, int64_t begin, int64_t end);
  void (*sums)(const SumsCall &call, int64_t begin, int64_t end);
  void (*norm_backward)(const NormBackwardCall &call, int64_t begin,
                        int64_t end);
  void (*norm_vector_gradients)(const NormBackwardCall &call, int64_t begin,
                                int64_t end);
  void (*add_rows)(const AddRowsCall &call, int64_t begin, int64_t end);
  void (*fill_row_panels)(const GemmCall &call, int64_t begin, int64_t end);
  void (*multiply_panels)(const GemmCall &call, int64_t begin, int64_t end);
  void (*fill_integer_rows)(const GemmCall &call, int64_t begin, int64_t end);
  void (*multiply_integers)(const GemmCall &call, int64_t begin, int64_t end);
  // Null but where the processor multiplies bfloat16.
  void (*fill_bfloat_rows)(const GemmCall &call, int64_t begin, int64_t end);
  void (*multiply_bfloats)(const GemmCall &call, int64_t begin, int64_t end);
  void (*fill_few_fp4)(const GemmCall &call, int64_t begin, int64_t end);
  void (*multiply_few_fp4)(const GemmCall &call, int64_t begin, int64_t end);
  ScaleRange (*gemm_scale_range)(const GemmOperand &operand, bool skip_zeros);
};

// The table in use: the widest the machine runs, or what `set_isa` chose.
const KernelTable &kernels();

// Chooses a table by name; an empty name means the widest. Throws
// std::invalid_argument when this machine or this build does not have it.
void set_isa(const std::string &name);

// Names of the tables this machine can run, widest last; never empty.
std::vector<std::string> instruction_sets();

} // namespace steelyard
