"""Checks of what users pass to the functions for JAX."""

from contextlib import suppress
from numbers import Real
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from steelyard.errors import RecipeError, shown
from steelyard.jax.formats import HIGH_PRECISION


def is_array(value: Any) -> bool:
    """Whether a value is an array of JAX, a traced one included, or of numpy, with numbers in it."""
    return isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.dtype != object)


def check_array(value: Any, what: str) -> None:
    """Refuse what is no array."""
    if not is_array(value):
        raise RecipeError(f"{what} must be an array of JAX, got {type(value).__name__}")


def check_amax(amax: Any) -> None:
    """Refuse what is neither an array, nor a number, nor None."""
    if amax is not None and not isinstance(amax, Real):
        check_array(amax, "amax")


def check_source(x: Any, argument: str) -> None:
    """Refuse anything but a high-precision array with at least two dims."""
    if not is_array(x) or x.dtype not in map(jnp.dtype, HIGH_PRECISION) or x.ndim < 2:
        found = f"{x.dtype} of shape {tuple(x.shape)}" if is_array(x) else type(x).__name__
        raise RecipeError(f"{argument} must be float32, bfloat16 or float16 with at least two dims, got {found}")


def check_flag(value: Any, what: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise RecipeError(f"{what} must be True or False, got {shown(value)}")


def as_dtype(dtype: Any, what: str) -> Any:
    """A dtype as JAX has it."""
    # JAX names dtypes by functions such as `jnp.float32`, too; numpy would take a dtype from almost anything.
    if isinstance(dtype, str | type | np.dtype) or callable(dtype):
        with suppress(TypeError, ValueError):
            return jnp.dtype(cast(Any, dtype))
    raise RecipeError(f"{what} must be a dtype of JAX, got {shown(dtype)}")


def as_high_precision(dtype: Any, what: str) -> Any:
    """A dtype that tensors are decoded to."""
    found = as_dtype(dtype, what)
    if found not in map(jnp.dtype, HIGH_PRECISION):
        raise RecipeError(f"{what} must be float32, bfloat16 or float16, got {found.name}")
    return found


def as_floats(value: Any, what: str) -> jax.Array:
    """A number, or an array of numbers, as float32."""
    if not is_array(value) and not isinstance(value, Real):
        raise RecipeError(f"{what} must be a number or an array of JAX, got {type(value).__name__}")
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise RecipeError(f"{what} must hold real numbers, got {array.dtype}")
    return array.astype(jnp.float32)


def check_shape(shape: Any, what: str) -> None:
    """Refuse what is no tuple of sizes."""
    sizes = list(shape) if isinstance(shape, tuple | list) else None
    if sizes is None or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise RecipeError(f"{what} must be a tuple of sizes, got {shown(shape)}")
