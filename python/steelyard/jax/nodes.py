"""What every tensor for JAX has in common, and the one that is not quantized."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import register_pytree_node_class

from steelyard.errors import RecipeError
from steelyard.jax import sharding
from steelyard.jax.arguments import check_amax, check_array
from steelyard.jax.scaling_modes import ScalingMode


class AbstractBaseTensor(ABC):
    """What every tensor can do, quantized or not."""

    shape: Any
    """The shape of the tensor that it represents."""

    @abstractmethod
    def dequantize(self) -> jax.Array:
        """The values in high precision."""

    @abstractmethod
    def get_tensor(self, is_colwise: bool = False) -> "AbstractBaseTensor1x":
        """The copy of a usage."""

    @abstractmethod
    def apply_sharding_constraint_by_logical_axes(self, axes: Sequence[str | None]) -> "AbstractBaseTensor":
        """The tensor sharded by the logical axes of its dims; unchanged if there are no rules."""


class Node:
    """A pytree node whose children are the fields `leaves`; the fields `static` are auxiliary data."""

    leaves: tuple[str, ...] = ()
    static: tuple[str, ...] = ()

    def tree_flatten(self):
        return tuple(getattr(self, name) for name in self.leaves), tuple(getattr(self, name) for name in self.static)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        # Leaves may be anything while JAX rebuilds a tree: nothing is checked here.
        tensor = object.__new__(cls)
        for name, value in zip((*cls.leaves, *cls.static), (*leaves, *static), strict=True):
            setattr(tensor, name, value)
        return tensor

    def _with(self, **changes):
        leaves, static = self.tree_flatten()
        values = dict(zip((*self.leaves, *self.static), (*leaves, *static), strict=True)) | changes
        return self.tree_unflatten([values[name] for name in self.static], [values[name] for name in self.leaves])

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in (*self.leaves, *self.static))
        return f"{type(self).__name__}({fields})"


class AbstractBaseTensor1x(AbstractBaseTensor):
    """One array of data, and the amax of what it was made from."""

    data: jax.Array
    amax: jax.Array | None


@register_pytree_node_class
class NoScaleTensor(Node, AbstractBaseTensor1x):
    """A tensor in high precision."""

    leaves = ("data", "amax")

    def __init__(self, data: jax.Array, amax: jax.Array | None = None):
        check_array(data, "data")
        check_amax(amax)
        self.data = data
        self.amax = amax

    scaling_mode = ScalingMode.NO_SCALING

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def dequantize(self) -> jax.Array:
        return self.data

    def get_tensor(self, is_colwise: bool = False) -> "NoScaleTensor":
        return self

    def apply_sharding_constraint_by_logical_axes(self, axes: Sequence[str | None]) -> "NoScaleTensor":
        mesh_axes = sharding.resolve(checked_axes(axes, self.data.ndim))
        return self if mesh_axes is None else self._with(data=sharding.constrain(self.data, mesh_axes, "data"))


def checked_axes(axes: Sequence[str | None], ndim: int) -> Sequence[str | None]:
    if len(axes) != ndim:
        raise RecipeError(f"axes must name each of the {ndim} dims, got {len(axes)}: {tuple(axes)}")
    return axes
