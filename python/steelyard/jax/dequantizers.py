"""From codes and scales to values: one function per family of modes, from a tensor to an array of its `dq_dtype`."""

from collections.abc import Callable
from typing import Any

import jax

from steelyard.errors import RecipeError
from steelyard.jax.nodes import AbstractBaseTensor1x
from steelyard.jax.scaling_modes import ScalingMode


def noop_dequantizer(tensor: Any) -> jax.Array:
    """The data of a tensor in high precision."""
    _check_tensor(tensor, "noop_dequantizer")
    return tensor.data


def tensor_scale_dequantizer(tensor: Any) -> jax.Array:
    """`data * scale_inv`, one scale for the tensor."""
    return _decode(tensor, "tensor", "tensor_scale_dequantizer")


def block_scale_dequantizer(tensor: Any) -> jax.Array:
    """`data * scale_inv`, with one float32 scale per 1x128 block or 128x128 tile."""
    return _decode(tensor, "block", "block_scale_dequantizer")


def mxfp8_dequantizer(tensor: Any) -> jax.Array:
    """`data * scale_inv`, with one power of two per 32 elements."""
    return _decode(tensor, "mx", "mxfp8_dequantizer")


def nvfp4_dequantizer(tensor: Any) -> jax.Array:
    """`data * scale_inv * amax / (6 * 448)`, with one scale per 16 elements; the Hadamard transform is undone."""
    return _decode(tensor, "nvfp4", "nvfp4_dequantizer")


def _decode(tensor: Any, family: str, name: str) -> jax.Array:
    _check_tensor(tensor, name)
    if getattr(tensor, "scheme", None) is None or tensor.scheme.family != family:
        raise RecipeError(f"{name} needs a tensor of its own scaling mode, got {tensor.scaling_mode.name}")
    return tensor.decode()


def _check_tensor(tensor: Any, name: str) -> None:
    if not isinstance(tensor, AbstractBaseTensor1x):
        raise RecipeError(f"{name} takes one copy, a tensor of steelyard.jax, got {type(tensor).__name__}")


BY_MODE: dict[ScalingMode, Callable] = {
    ScalingMode.NO_SCALING: noop_dequantizer,
    ScalingMode.DELAYED_TENSOR_SCALING: tensor_scale_dequantizer,
    ScalingMode.CURRENT_TENSOR_SCALING: tensor_scale_dequantizer,
    ScalingMode.BLOCK_1X128_SCALING: block_scale_dequantizer,
    ScalingMode.BLOCK_128X128_SCALING: block_scale_dequantizer,
    ScalingMode.MXFP8_1D_SCALING: mxfp8_dequantizer,
    ScalingMode.MXFP8_2D_SCALING: mxfp8_dequantizer,
    ScalingMode.NVFP4_1D_SCALING: nvfp4_dequantizer,
    ScalingMode.NVFP4_2D_SCALING: nvfp4_dequantizer,
}
