"""The activations that kernels compute, by the names that the IR, the reference and every target know them by."""

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")

EPILOGUES = ("none", *ACTIVATIONS)
"""What a GEMM may apply to its product."""
