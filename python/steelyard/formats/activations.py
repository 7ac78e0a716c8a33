"""The activations that kernels compute, under the names that the IR, the reference and every target use."""

from typing import Literal, get_args

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

Epilogue = Literal["none", Activation]
EPILOGUES: tuple[Epilogue, ...] = get_args(Epilogue)
"""What a GEMM can apply to its product."""
