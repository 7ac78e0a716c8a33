"""Names for the leaves of a function's arguments, and so for the layers that they are the weights of."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

_WRAPPERS = ("value", "raw_value")
"""How the variables of flax.nnx call the array that they hold."""
_PLAIN = ("kernel", "weight", "embedding", "w")
"""What modules call their matrix: it has the name of the layer."""
_COLLECTION = "params"


@dataclass(frozen=True)
class Parameter:
    """A leaf that products with are quantized."""

    name: str
    layer: str


def parameters_of(
    paths: Sequence[tuple[Any, ...]], leaves: Sequence[Any], argument: str, *, is_prefix: bool = False
) -> list[Parameter | None]:
    """The parameters among the leaves of one argument of a function; None for leaves that are no floats.

    A parameter is named by its path. Its layer is the module that holds it, if it is that module's kernel, weight,
    embedding or w, and the whole path otherwise. With `is_prefix` names begin with that of the argument.
    """
    names = [(argument, *_name(path)) if is_prefix else _name(path) for path in paths]
    plain = Counter(name[:-1] for name in names if name[-1:] and name[-1] in _PLAIN)
    return [
        _parameter(name, argument, plain) if _is_float(leaf) else None for name, leaf in zip(names, leaves, strict=True)
    ]


def repeated_name(parameters: Sequence[Parameter | None]) -> str | None:
    """A name that two parameters have."""
    counts = Counter(parameter.name for parameter in parameters if parameter is not None)
    return next((name for name, count in counts.items() if count > 1), None)


def _parameter(name: tuple[str, ...], argument: str, plain: Counter[tuple[str, ...]]) -> Parameter:
    path = ".".join(name) or argument
    if len(name) > 1 and name[-1] in _PLAIN and plain[name[:-1]] == 1:
        return Parameter(path, ".".join(name[:-1]))
    return Parameter(path, path)


def _name(path: tuple[Any, ...]) -> tuple[str, ...]:
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    # A module may be called value, too: only the last key is the wrapper's.
    keys = keys[:-1] if len(keys) > 1 and keys[-1] in _WRAPPERS else keys
    return tuple(keys[1:] if len(keys) > 1 and keys[0] == _COLLECTION else keys)


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
