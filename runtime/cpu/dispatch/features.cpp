#include "cpu/dispatch/features.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace steelyard {

#if defined(__x86_64__) || defined(__i386__)
// Asked of the processor itself: not every compiler's builtin knows the name.
static bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

static CpuFeatures detect() {
  CpuFeatures found;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  found.avx2 = __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma") && has_f16c();
  found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
  found.avx512_vnni = found.avx512 && __builtin_cpu_supports("avx512vnni");
  found.avx512_bf16 = found.avx512_vnni && __builtin_cpu_supports("avx512bf16");
#endif
  return found;
}

const CpuFeatures &cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

} // namespace steelyard
