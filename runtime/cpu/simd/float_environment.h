// Subnormals and round-to-nearest, whatever mode the caller's thread is in.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace steelyard {

class FloatEnvironment {
#if defined(__SSE__)
public:
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }

private:
  unsigned saved_;
#else
public:
  FloatEnvironment() {}
#endif
  FloatEnvironment(const FloatEnvironment &) = delete;
};

} // namespace steelyard
