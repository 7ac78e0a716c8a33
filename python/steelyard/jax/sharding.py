"""Logical axes: names of dims that rules map to the axes of a mesh."""

import contextlib
import contextvars
import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from steelyard.errors import ConstraintError, shown

Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]
_rules: contextvars.ContextVar[tuple[dict, Mesh | None] | None] = contextvars.ContextVar("axis_rules", default=None)


@contextlib.contextmanager
def logical_axis_rules(rules: Rules, mesh: Mesh | None = None):
    """Map logical axes to mesh axes, by pairs of a name and one axis, several axes or None, on the current mesh."""
    table = {}
    if not isinstance(rules, list | tuple):
        raise ConstraintError("sharding_rules", f"rules must be a list of pairs, got {shown(rules)}")
    for rule in rules:
        if not (isinstance(rule, tuple) and len(rule) == 2 and isinstance(rule[0], str)):
            raise ConstraintError("sharding_rules", f"rules must be pairs (logical axis, mesh axis), got {shown(rule)}")
        table.setdefault(rule[0], rule[1])
    token = _rules.set((table, mesh))
    try:
        yield
    finally:
        _rules.reset(token)


def resolve(axes: Sequence[str | None]) -> list | None:
    """Mesh axes of logical axes; None without rules."""
    current = _rules.get()
    if current is None:
        return None
    table, _ = current
    for axis in axes:
        if axis is not None and axis not in table:
            raise ConstraintError(
                "sharding_axes", f"axes must be named by the rules ({', '.join(table)}), got {axis!r}; add a rule"
            )
    return [None if axis is None else table[axis] for axis in axes]


def constrain(array: jax.Array, mesh_axes: Sequence, what: str, *, must_divide: bool = True) -> jax.Array:
    """The array with each dim sharded over its mesh axes; dims that do not divide are refused or left whole."""
    current = _rules.get()
    mesh = current[1] if current and current[1] is not None else jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty:
        raise ConstraintError(
            "sharding_mesh", "a sharding constraint needs a mesh; pass mesh= to logical_axis_rules or use jax.set_mesh"
        )
    entries = []
    for size, axes in zip(array.shape, mesh_axes, strict=True):
        names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        parts = math.prod(mesh.shape[name] for name in names)
        if size % parts and must_divide:
            raise ConstraintError(
                "sharding_axes", f"{what}: a dim of size {size} must divide over {parts} devices ({axes})"
            )
        entries.append(None if size % parts else axes)
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*entries)))
