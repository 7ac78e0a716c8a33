#include "cpu/dispatch/features.h"

namespace steelyard {

static CpuFeatures detect() {
  CpuFeatures found;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  found.avx2 = __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
  found.avx512_vnni = found.avx512 && __builtin_cpu_supports("avx512vnni");
#endif
  return found;
}

const CpuFeatures &cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

} // namespace steelyard
