#include "kernel_table.h"

#include "amax.h"
#include "dequantize.h"
#include "gemm.h"
#include "produce.h"
#include "quantize.h"
#include "transpose.h"

#define STEELYARD_STRING(text) #text
#define STEELYARD_NAME(macro) STEELYARD_STRING(macro)

namespace steelyard::STEELYARD_ISA {

#if defined(__AVX2__)
static constexpr bool kHasAvx2 = true;
#else
static constexpr bool kHasAvx2 = false;
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
    .gemm_scale_range = gemm_scale_range,
};

} // namespace steelyard::STEELYARD_ISA
