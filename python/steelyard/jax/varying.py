"""Values under named axes: over which devices of a shard_map they vary, and what they are for one that varies less."""

from typing import Any

import jax
from jax import lax


def _extra_axes(value: jax.Array, like: Any) -> tuple[Any, ...]:
    """The axes that a value varies over and another does not."""
    axes = jax.typeof(value).manual_axis_type.varying - jax.typeof(like).manual_axis_type.varying
    return tuple(sorted(axes, key=str))


def largest_over(value: jax.Array, like: Any) -> jax.Array:
    """The largest of a value over the devices that another is the same on."""
    axes = _extra_axes(value, like)
    return lax.pmax(value, axes) if axes else value


def summed_over(value: jax.Array, like: Any) -> jax.Array:
    """The sum of a value over the devices that another is the same on: the gradient of that other one."""
    axes = _extra_axes(value, like)
    return lax.psum(value, axes) if axes else value


def vmapped_axes(closed: Any) -> tuple[Any, ...]:
    """The axes that a jaxpr names and that vmap made, and not a mesh."""
    named = {effect.name for effect in closed.effects if hasattr(effect, "name")}
    return tuple(sorted(named - set(jax.sharding.get_abstract_mesh().manual_axes), key=str))


def each_its_own(value: jax.Array, axes: tuple[Any, ...]) -> jax.Array:
    """A value that vmap knows no longer to be the same for all elements of axes."""
    for axis in axes:
        value = lax.select(lax.axis_index(axis) >= 0, value, value)
    return value
