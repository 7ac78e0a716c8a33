#include "cpu/dispatch/kernel_table.h"

#include "cpu/attention/attention.h"
#include "cpu/decode/dequantize.h"
#include "cpu/decode/transpose.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/gemm/gemm.h"
#include "cpu/produce/produce.h"
#include "cpu/quantize/amax.h"
#include "cpu/quantize/quantize.h"
#include "cpu/rows/add_rows.h"
#include "cpu/rows/norm_backward.h"
#include "cpu/rows/rows.h"
#include "cpu/rows/sums.h"
#include "cpu/simd/simd.h"

#define STEELYARD_STRING(text) #text
#define STEELYARD_NAME(macro) STEELYARD_STRING(macro)

namespace steelyard::STEELYARD_ISA {

using GemmKernel = void (*)(const GemmCall &call, int64_t begin, int64_t end);
// Compiled for instruction sets with vectors only.
static constexpr GemmKernel kFillIntegerRows =
                                kHasVectors ? fill_integer_rows : nullptr,
                            kMultiplyIntegers =
                                kHasVectors ? multiply_integers : nullptr,
                            kFillFewFp4 = kHasVectors ? fill_few_fp4 : nullptr,
                            kMultiplyFewFp4 =
                                kHasVectors ? multiply_few_fp4 : nullptr;

extern const KernelTable table;
const KernelTable table{
    .name = STEELYARD_NAME(STEELYARD_ISA),
    .has_vectors = kHasVectors,
    .amax = amax,
    .attend_blocks = attend_blocks,
    .attend_few = attend_few,
    .merge_few = merge_few,
    .attend_backward = attend_backward,
    .quantize = quantize,
    .dequantize = dequantize,
    .elementwise = elementwise,
    .transpose = transpose,
    .produce = produce,
    .rows = rows,
    .sums = sums,
    .norm_backward = norm_backward,
    .norm_vector_gradients = norm_vector_gradients,
    .add_rows = add_rows,
    .fill_row_panels = fill_row_panels,
    .multiply_panels = multiply_panels,
    .fill_integer_rows = kFillIntegerRows,
    .multiply_integers = kMultiplyIntegers,
    .fill_bfloat_rows = nullptr,
    .multiply_bfloats = nullptr,
    .fill_few_fp4 = kFillFewFp4,
    .multiply_few_fp4 = kMultiplyFewFp4,
    .gemm_scale_range = gemm_scale_range,
};

} // namespace steelyard::STEELYARD_ISA
