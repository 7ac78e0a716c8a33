// NVIDIA's own conversions, on the host: float32 from stdin to four bytes each,
// E4M3, E5M2, E2M1 and E8M0 rounded up.
#include <cstdio>

#include <cuda_fp4.h>
#include <cuda_fp8.h>

int main() {
  float value;
  while (std::fread(&value, sizeof value, 1, stdin) == 1) {
    const unsigned char codes[] = {
        __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3),
        __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2),
        __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest),
        __nv_cvt_float_to_e8m0(value < 0 ? -value : value, __NV_SATFINITE,
                               cudaRoundPosInf)};
    std::fwrite(codes, 1, sizeof codes, stdout);
  }
}
