// What a GEMM makes of a product: out = epilogue(product + bias + accumulate) +
// residual. Null data stands for what is not given.
#pragma once

#include "cpu/produce/activations.h"
#include "cpu/tiles/matrix.h"

namespace steelyard {

struct GemmResult {
  Matrix out; // unit column stride
  Matrix bias{}, accumulate{};
  Activation epilogue = Activation::none;
  Matrix preactivation{}; // gets what the epilogue is given, like `out`
  Matrix residual{};
};

} // namespace steelyard
