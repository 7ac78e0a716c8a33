#include "cpu/dispatch/kernel_table.h"

#include "cpu/decode/dequantize.h"
#include "cpu/decode/transpose.h"
#include "cpu/gemm/gemm.h"
#include "cpu/produce/produce.h"
#include "cpu/quantize/amax.h"
#include "cpu/quantize/quantize.h"

#define STEELYARD_STRING(text) #text
#define STEELYARD_NAME(macro) STEELYARD_STRING(macro)

namespace steelyard::STEELYARD_ISA {

using GemmKernel = void (*)(const GemmCall &call, int64_t begin, int64_t end);
#if defined(__AVX2__)
static constexpr bool kHasAvx2 = true;
static constexpr GemmKernel kPackIntegers = pack_integers,
                            kMultiplyIntegers = multiply_integers;
#else
static constexpr bool kHasAvx2 = false;
static constexpr GemmKernel kPackIntegers = nullptr,
                            kMultiplyIntegers = nullptr;
#endif

extern const KernelTable table;
const KernelTable table{
    .name = STEELYARD_NAME(STEELYARD_ISA),
    .has_avx2 = kHasAvx2,
    .amax = amax,
    .quantize = quantize,
    .dequantize = dequantize,
    .transpose = transpose,
    .produce = produce,
    .gemm_pack = gemm_pack,
    .gemm_multiply = gemm_multiply,
    .pack_integers = kPackIntegers,
    .multiply_integers = kMultiplyIntegers,
    .gemm_scale_range = gemm_scale_range,
};

} // namespace steelyard::STEELYARD_ISA
