#include "cpu/dispatch/kernel_table.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/operations.h"
#include "cpu/threads/thread_pool.h"

namespace steelyard {
namespace {

// Elements that are not worth a thread of their own.
constexpr int64_t kGrainElements = 1 << 14;

// The memory that an access walks, and its strides over the dims of the loop.
void resolve(const ElementwiseAccess &access, const ElementwiseTensor &tensor,
             StridedAccess &found) {
  int64_t offset = 0;
  for (int64_t &stride : found.strides)
    stride = 0;
  for (const ElementwiseTerm &term : access.terms) {
    const int64_t step = term.coefficient * tensor.strides[term.tensor_dim];
    if (term.loop_dim < 0)
      offset += step;
    else
      found.strides[term.loop_dim] += step;
  }
  found.type = access.type;
  found.data = static_cast<char *>(tensor.data) +
               offset * kElementSizes[static_cast<int>(access.type)];
}

bool walks_as_one(const ElementwiseCall &call, int outer, int inner) {
  for (int a = 0; a < call.access_count; ++a) {
    const int64_t *strides = call.accesses[a].strides;
    if (strides[outer] != strides[inner] * call.sizes[inner])
      return false;
  }
  return true;
}

void move_dim(ElementwiseCall &call, int from, int to) {
  call.sizes[to] = call.sizes[from];
  for (int a = 0; a < call.access_count; ++a)
    call.accesses[a].strides[to] = call.accesses[a].strides[from];
}

// Drops dims of one element, and joins dims that every access walks as one.
void join_dims(ElementwiseCall &call, int dims) {
  int kept = 0;
  for (int d = 0; d < dims; ++d) {
    if (call.sizes[d] == 1)
      continue;
    move_dim(call, d, kept);
    if (kept > 0 && walks_as_one(call, kept - 1, kept)) {
      const int64_t size = call.sizes[kept - 1] * call.sizes[kept];
      move_dim(call, kept, kept - 1);
      call.sizes[kept - 1] = size;
    } else {
      ++kept;
    }
  }
  if (kept == 0) {
    call.sizes[0] = 1;
    for (int a = 0; a < call.access_count; ++a)
      call.accesses[a].strides[0] = 0;
    kept = 1;
  }
  call.dims = kept;
}

bool is_dense(const ElementwiseCall &call, const StridedAccess &access) {
  int64_t expected = 1;
  for (int d = call.dims - 1; d >= 0; --d) {
    if (access.strides[d] != expected)
      return false;
    expected *= call.sizes[d];
  }
  return true;
}

// Whether one step computes what is stored from float32 tensors, all of them
// one run of memory: then no register is filled.
bool needs_no_registers(const ElementwiseCall &call) {
  if (call.constant_count > 0 || call.step_count != call.access_count + 1)
    return false;
  for (int a = 0; a < call.access_count; ++a) {
    const StridedAccess &access = call.accesses[a];
    if (access.type != ElementType::f32 || !access.is_dense)
      return false;
  }
  return true;
}

void cut(ElementwiseCall &call) {
  const int64_t columns = call.sizes[call.dims - 1];
  call.rows = 1;
  for (int d = 0; d + 1 < call.dims; ++d)
    call.rows *= call.sizes[d];
  const int64_t most = call.is_copy || needs_no_registers(call)
                           ? kGrainElements
                           : call.register_size;
  call.pieces = (columns + most - 1) / most;
  call.chunk_columns = columns < most ? columns : most;
  const int64_t fitting = most / call.chunk_columns;
  call.chunk_rows = call.pieces > 1        ? 1
                    : fitting < kChunkRows ? fitting
                                           : kChunkRows;
}

bool copies(const ElementwiseLoop &loop) {
  return loop.steps.size() == 2 && loop.accesses.size() == 2 &&
         loop.accesses[0].type == loop.accesses[1].type;
}

void run_loop(const ElementwiseLoop &loop, const ElementwiseTensor *tensors,
              const int64_t *sizes, int threads) {
  ElementwiseCall call{};
  const int dims = static_cast<int>(loop.sizes.size());
  for (int d = 0; d < dims; ++d) {
    const int64_t size = loop.sizes[d];
    call.sizes[d] = size >= 0 ? size : sizes[-1 - size];
    if (call.sizes[d] == 0)
      return;
  }
  call.access_count = static_cast<int>(loop.accesses.size());
  for (int a = 0; a < call.access_count; ++a)
    resolve(loop.accesses[a], tensors[loop.accesses[a].tensor],
            call.accesses[a]);
  join_dims(call, dims);
  for (int a = 0; a < call.access_count; ++a)
    call.accesses[a].is_dense = is_dense(call, call.accesses[a]);
  call.steps = loop.steps.data();
  call.step_count = static_cast<int64_t>(loop.steps.size());
  call.constants = loop.constants.data();
  call.constant_count = static_cast<int64_t>(loop.constants.size());
  call.register_size =
      loop.registers > kFewRegisters ? kFewElements : kManyElements;
  call.is_copy = copies(loop);
  cut(call);
  const int64_t chunks =
      (call.rows + call.chunk_rows - 1) / call.chunk_rows * call.pieces;
  const int64_t grain =
      kGrainElements / (call.chunk_rows * call.chunk_columns) + 1;
  const KernelTable &table = kernels();
  parallel_for(chunks, grain, threads, [&](int64_t begin, int64_t end) {
    table.elementwise(call, begin, end);
  });
}

} // namespace

void run_elementwise(const ElementwiseProgram &program,
                     const ElementwiseTensor *tensors, const int64_t *sizes,
                     int threads) {
  for (const ElementwiseLoop &loop : program.loops)
    run_loop(loop, tensors, sizes, threads);
}

} // namespace steelyard
