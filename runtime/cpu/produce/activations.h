// Which activation follows a GEMM, or makes what is quantized.
#pragma once

namespace steelyard {

enum class Activation : int { none, relu, gelu, gelu_tanh, silu };

// In the order of the enum: callers know activations by name.
inline constexpr const char *kActivationNames[] = {"none", "relu", "gelu",
                                                   "gelu_tanh", "silu"};

} // namespace steelyard
