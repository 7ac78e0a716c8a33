"""Variables of flax.nnx among the arguments of a function: what it changes there is returned, and written back.

Running means and the counts of random streams are such variables. A traced function gets variables of its own.
"""

import sys
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from steelyard.errors import UnsupportedModelError

Updates = dict[str, Any]
"""The new values of variables, by their paths."""


def _is_variable(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Variable)


def variables_of(arguments: Any) -> dict[str, Any]:
    """The variables in a tree, by their paths."""
    pairs, _ = tree_flatten_with_path(arguments, is_leaf=_is_variable)
    return {keystr(path): each for path, each in pairs if _is_variable(each)}


def shared_variables(arguments: Any, leaves: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Which variables in a tree, by number, are another one before them. Parameters that are shared do not change."""
    if "flax.nnx" not in sys.modules or len(set(map(id, leaves))) == len(leaves):
        return ()
    first: dict[int, int] = {}
    each = enumerate(jax.tree.leaves(arguments, is_leaf=_is_variable))
    streams = [(i, value) for i, value in each if _is_variable(value) and not _is_parameter(value)]
    return tuple((i, first[id(value)]) for i, value in streams if first.setdefault(id(value), i) != i)


def _is_parameter(value: Any) -> bool:
    return isinstance(value, sys.modules["flax.nnx"].Param)


def with_shared(arguments: Any, shared: tuple[tuple[int, int], ...]) -> Any:
    """A tree in which variables are one again."""
    if not shared:
        return arguments
    leaves, tree = jax.tree.flatten(arguments, is_leaf=_is_variable)
    for number, first in shared:
        leaves[number] = leaves[first]
    return jax.tree.unflatten(tree, leaves)


def changed_variables(before: Updates, arguments: Any) -> Updates:
    """What a function has changed since the variables had these values."""
    after = variables_of(arguments)
    if odd := before.keys() ^ after.keys():
        raise UnsupportedModelError(
            f"a function must not add or remove variables of flax.nnx, got {', '.join(sorted(odd))}; create them "
            "before the call, or return what is collected"
        )
    return {path: new for path, each in after.items() if (new := each.get_raw_value()) is not before[path]}


def values_of(arguments: Any) -> Updates:
    """The values of the variables in a tree."""
    return {path: each.get_raw_value() for path, each in variables_of(arguments).items()}


def write_back(updates: Updates, arguments: Any) -> None:
    """Change the variables that the function has changed."""
    held = variables_of(arguments) if updates else {}
    for path, value in updates.items():
        held[path].set_raw_value(value)


def copied(arguments: Any) -> Any:
    """The same arguments with variables of their own."""
    return jax.tree.map(lambda leaf: leaf, arguments)
