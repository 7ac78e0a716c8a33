"""Steelyard for JAX: quantized tensors as pytrees, and operations on them, with the same kernels as for torch."""

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

__all__ = [
    "AbstractBaseTensor",
    "AbstractBaseTensor1x",
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
