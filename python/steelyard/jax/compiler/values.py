"""The quantized tensors of a program that runs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node_class
from torch_mlir import ir

from steelyard.dialect.types import tensor_info
from steelyard.jax import stacked
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.nodes import Node


@register_pytree_node_class
class Copy(Node):
    """One copy of a quantized tensor."""

    leaves = ("parts",)
    static = ("spec",)

    parts: Parts
    spec: CopySpec

    def __init__(self, parts: Parts, spec: CopySpec):
        self.parts, self.spec = parts, spec


@register_pytree_node_class
class Packed(Node):
    """One copy of a quantized weight, packed for the products of the CPU."""

    leaves = ("data",)
    static = ("spec",)

    data: jax.Array
    spec: CopySpec

    def __init__(self, data: jax.Array, spec: CopySpec):
        self.data, self.spec = data, spec


@register_pytree_node_class
class Quantized(Node):
    """A quantized tensor with the copies that its type has."""

    leaves = ("rowwise", "columnwise")

    rowwise: Copy | Packed | None
    columnwise: Copy | Packed | None

    def __init__(self, rowwise: Copy | Packed | None, columnwise: Copy | Packed | None):
        self.rowwise, self.columnwise = rowwise, columnwise

    def copy_of(self, usage: str) -> Any:
        """The `rowwise` or `columnwise` copy."""
        copy = self.rowwise if usage == "rowwise" else self.columnwise
        assert copy is not None, "the verifier requires the copy that is read"
        return copy

    @property
    def amax(self) -> jax.Array:
        """The amax of the tensor, of a scheme that has one scale."""
        return self.amaxes.reshape(())

    @property
    def amaxes(self) -> jax.Array:
        """The same of each group of a tensor in groups."""
        copy = self.columnwise if self.rowwise is None else self.rowwise
        assert isinstance(copy, Copy)
        assert copy.parts.amax is not None
        return copy.parts.amax.reshape(-1)


@register_pytree_node_class
class Stacked(Node):
    """One part of a stack of quantized tensors: what a loop quantized once has in one trip."""

    leaves = ("whole", "number")

    whole: Quantized
    number: jax.Array

    def __init__(self, whole: Quantized, number: jax.Array):
        self.whole, self.number = whole, number

    def taken(self) -> Quantized:
        """The part by itself, a copy."""
        return stacked.part_of(self.whole, self.number)


_FLOATS = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def shape_of(type_: ir.Type) -> tuple[int, ...]:
    """The shape that a tensor type says."""
    info = tensor_info(type_)
    assert info is not None, "values of JAX functions are ranked tensors"
    return tuple(size for size in info.shape if size is not None)


def float_dtype(type_: ir.Type) -> Any:
    """The dtype of a high-precision tensor type."""
    return _FLOATS[str(ir.RankedTensorType(type_).element_type)]
