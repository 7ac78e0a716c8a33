// What kernels ask of an instruction set, by the names of operations. Included
// by kernel sources only.
//
// A port to another instruction set is one header with the operations of
// portable.h, chosen here. `kHasVectors` tells kernels to use vectors.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "cpu/simd/avx2.h"
#else
#include "cpu/simd/portable.h"
#endif
