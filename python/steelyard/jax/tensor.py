"""Tensors for JAX, quantized or not, and the factory that makes them from their parts."""

from steelyard.jax.factory import ScaledTensorFactory
from steelyard.jax.grouped_tensors import GroupedScaledTensor1x
from steelyard.jax.nodes import AbstractBaseTensor, AbstractBaseTensor1x, NoScaleTensor
from steelyard.jax.scaled_tensors import ScaledTensor, ScaledTensor1x, ScaledTensor2x

__all__ = [
    "AbstractBaseTensor",
    "AbstractBaseTensor1x",
    "GroupedScaledTensor1x",
    "NoScaleTensor",
    "ScaledTensor",
    "ScaledTensor1x",
    "ScaledTensor2x",
    "ScaledTensorFactory",
]
