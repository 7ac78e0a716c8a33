"""Steelyard for JAX: quantized tensors as pytrees, and operations on them, with the same kernels as for torch."""

from importlib import import_module
from typing import TYPE_CHECKING

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("steelyard.jax needs jax; install steelyard[jax]") from error

from steelyard.jax.dense import dense
from steelyard.jax.dequantizers import (
    block_scale_dequantizer,
    mxfp8_dequantizer,
    noop_dequantizer,
    nvfp4_dequantizer,
    tensor_scale_dequantizer,
)
from steelyard.jax.grouped_dense import grouped_dense
from steelyard.jax.native import traced_path, use_path
from steelyard.jax.operations import dequantize, dot, quantize
from steelyard.jax.quantizer_factory import QuantizeLayout, QuantizerFactory
from steelyard.jax.quantizers import DelayedQuantizer, Quantizer, QuantizerSet, update_scale
from steelyard.jax.scaling_modes import ScalingMode
from steelyard.jax.sharding import logical_axis_rules
from steelyard.jax.tensor import (
    AbstractBaseTensor,
    AbstractBaseTensor1x,
    GroupedScaledTensor1x,
    NoScaleTensor,
    ScaledTensor,
    ScaledTensor1x,
    ScaledTensor2x,
    ScaledTensorFactory,
)

if TYPE_CHECKING:
    from steelyard.jax.compiler.compiled import CompiledFunction as CompiledFunction
    from steelyard.jax.compiler.compiled import compile as compile

__all__ = [
    "AbstractBaseTensor",
    "AbstractBaseTensor1x",
    "CompiledFunction",
    "DelayedQuantizer",
    "GroupedScaledTensor1x",
    "NoScaleTensor",
    "QuantizeLayout",
    "Quantizer",
    "QuantizerFactory",
    "QuantizerSet",
    "ScaledTensor",
    "ScaledTensor1x",
    "ScaledTensor2x",
    "ScaledTensorFactory",
    "ScalingMode",
    "block_scale_dequantizer",
    "compile",
    "dense",
    "dequantize",
    "dot",
    "grouped_dense",
    "logical_axis_rules",
    "mxfp8_dequantizer",
    "noop_dequantizer",
    "nvfp4_dequantizer",
    "quantize",
    "tensor_scale_dequantizer",
    "traced_path",
    "update_scale",
    "use_path",
]

_LAZY = ("CompiledFunction", "compile")
"""What the compiler brings with it, torch_mlir, is loaded when one of these is first used."""


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'steelyard.jax' has no attribute {name!r}")
    return getattr(import_module("steelyard.jax.compiler.compiled"), name)
