"""Values inside of a shard_map: over which devices they vary, and what they are for a value that varies over fewer."""

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
