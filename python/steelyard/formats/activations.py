"""The activations that kernels compute, by the names that the IR, the reference and every target know them by."""

from typing import Literal, get_args

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

Epilogue = Literal["none", Activation]
EPILOGUES: tuple[Epilogue, ...] = get_args(Epilogue)
"""What a GEMM may apply to its product."""
