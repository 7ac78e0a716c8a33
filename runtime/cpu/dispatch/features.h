// What the machine this process runs on can execute, asked once.
#pragma once

namespace steelyard {

struct CpuFeatures {
  bool avx2 = false;   // AVX2, FMA and F16C together: kernels use all three
  bool avx512 = false; // AVX-512 F, BW, DQ and VL together
  bool avx512_vnni = false;
  bool avx512_bf16 = false; // and VNNI
};

const CpuFeatures &cpu_features();

} // namespace steelyard
