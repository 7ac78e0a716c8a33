"""Where the groups of a matrix are stored in a copy of it.

Groups of rows follow each other; their sizes are known only at run time. Rows keep their places in the matrix. Blocks
along the rows never span two groups: the blocks of side s of group g begin at block `start // s + g`. FP4 codes that
run along the rows begin at their group's first block.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.formats import as_bytes, from_bytes

_SIDES = {"tensor": 1, "block": 128, "mx": 32, "nvfp4": 16}


@dataclass(frozen=True)
class PartLayout:
    """How a part of a copy follows the rows: one item per group or row, or `chunk` items per block of `side` rows."""

    kind: str
    axis: int = 0
    side: int = 1
    chunk: int = 1


def part_layouts(spec: CopySpec) -> list[PartLayout]:
    """The layouts of codes, scales and, if there is one, the amax."""
    scheme, side = spec.scheme, _SIDES[spec.scheme.family]
    axis = int(spec.is_stored_transposed)
    packed = scheme.family == "nvfp4" and axis == 1
    codes = PartLayout("blocks", 1, 16, 8) if packed else PartLayout("rows", axis)
    if scheme.family == "tensor":
        scales = PartLayout("group")
    elif spec.columnwise or scheme.block == "128x128":
        scales = PartLayout("blocks", axis, side)
    else:
        scales = PartLayout("rows", 0)
    layouts = [codes, scales]
    if scheme.family in ("tensor", "nvfp4"):
        by_row = scheme.second_level == "row" and not spec.columnwise
        layouts.append(PartLayout("rows", 0) if by_row else PartLayout("group"))
    return layouts


def part_types(spec: CopySpec, groups: int) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of each part of a grouped copy."""
    types = []
    for (shape, dtype), layout in zip(spec.part_types(), part_layouts(spec), strict=True):
        if layout.kind == "group":
            shape = (groups, *shape)
        if layout.kind == "blocks":
            shape = list(shape)
            shape[layout.axis] = (spec.shape[0] // layout.side + groups) * layout.chunk
        types.append((tuple(shape), dtype))
    return types


def group_starts(sizes: jax.Array) -> jax.Array:
    return jnp.cumsum(sizes) - sizes


def group_of_rows(sizes: jax.Array, rows: int) -> jax.Array:
    """The group of each row; `len(sizes)` for rows beyond the last group."""
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows), side="right")


def spread_rows(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """(groups, M, N): the rows of each group first, zeros after them."""
    return _gather(x, PartLayout("rows"), sizes, x.shape[0])


def collect_rows(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """The inverse of `spread_rows`; rows of no group are zero."""
    return _scatter(x, PartLayout("rows"), sizes, x.shape[1])


def spread(parts: Parts, spec: CopySpec, sizes: jax.Array) -> Parts:
    """One copy per group, each as large as a copy of the whole matrix."""
    flat = [part for part in parts if part is not None]
    made = []
    for part, layout, (shape, _) in zip(flat, part_layouts(spec), spec.part_types(), strict=True):
        made.append(part if layout.kind == "group" else _gather(part, layout, sizes, shape[layout.axis]))
    return Parts(*made)


def collect(parts: list[jax.Array], spec: CopySpec, sizes: jax.Array) -> list[jax.Array]:
    """The grouped copy from one copy per group."""
    made = []
    for part, layout in zip(parts, part_layouts(spec), strict=True):
        made.append(part if layout.kind == "group" else _scatter(part, layout, sizes, spec.shape[0]))
    return made


def cut(parts: Parts, spec: CopySpec, sizes: np.ndarray) -> list[tuple[CopySpec, Parts]]:
    """Each group of a copy, whose parts are arrays of numpy, as a copy of its own."""
    layouts, flat = part_layouts(spec), [part for part in parts if part is not None]
    starts = np.cumsum(sizes) - sizes
    made = []
    for group, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        own = replace(spec, shape=(size, spec.shape[1]))
        shapes = [shape for shape, _ in own.part_types()]
        pieces = [_piece(*each, group, start) for each in zip(flat, layouts, shapes, strict=True)]
        made.append((own, Parts(*pieces)))
    return made


def _piece(part: Any, layout: PartLayout, shape: tuple[int, ...], group: int, start: int) -> Any:
    if layout.kind == "group":
        return part[group]
    first = start if layout.kind == "rows" else (start // layout.side + group) * layout.chunk
    return part.take(range(first, first + shape[layout.axis]), axis=layout.axis)


def _places(layout: PartLayout, sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First item (row or block) and number of items of each group."""
    starts = group_starts(sizes)
    if layout.kind == "rows":
        return starts, sizes
    return starts // layout.side + jnp.arange(sizes.shape[0]), -(-sizes // layout.side)


def _on_bytes(move):
    """One-byte formats are moved as bytes: E8M0 has no zero to fill with."""

    def moved(part: jax.Array, *arguments) -> jax.Array:
        if part.dtype.itemsize > 1:
            return move(part, *arguments)
        return from_bytes(move(as_bytes(part), *arguments), part.dtype)

    return moved


@_on_bytes
def _gather(part: jax.Array, layout: PartLayout, sizes: jax.Array, length: int) -> jax.Array:
    first, count = _places(layout, sizes)
    items = _chunked(part, layout)
    own = -(-length // layout.chunk)
    wanted = first[:, None] + jnp.arange(own)
    inside = jnp.arange(own) < count[:, None]
    found = items[jnp.clip(wanted, 0, items.shape[0] - 1)]
    found = jnp.where(inside.reshape(*inside.shape, *(1,) * (found.ndim - 2)), found, jnp.zeros((), part.dtype))
    return jax.vmap(lambda group: _unchunked(group, layout, length))(found)


@_on_bytes
def _scatter(part: jax.Array, layout: PartLayout, sizes: jax.Array, rows: int) -> jax.Array:
    groups = sizes.shape[0]
    total = rows if layout.kind == "rows" else rows // layout.side + groups
    first, count = _places(layout, sizes)
    item = jnp.arange(total)
    group = jnp.clip(jnp.searchsorted(first, item, side="right") - 1, 0)
    if layout.kind == "rows":
        group = jnp.clip(group_of_rows(sizes, rows), 0, groups - 1)
    local = item - first[group]
    inside = (local >= 0) & (local < count[group])
    items = jax.vmap(lambda each: _chunked(each, layout))(part)
    found = items[group, jnp.clip(local, 0, items.shape[1] - 1)]
    found = jnp.where(inside.reshape(-1, *(1,) * (found.ndim - 1)), found, jnp.zeros((), part.dtype))
    return _unchunked(found, layout, total * layout.chunk)


def _chunked(part: jax.Array, layout: PartLayout) -> jax.Array:
    """Items first; a block of several bytes is one item."""
    moved = jnp.moveaxis(part, layout.axis, 0)
    if layout.chunk == 1:
        return moved
    padded = jnp.pad(moved, [(0, -moved.shape[0] % layout.chunk), *[(0, 0)] * (moved.ndim - 1)])
    return padded.reshape(-1, layout.chunk, *moved.shape[1:])


def _unchunked(items: jax.Array, layout: PartLayout, length: int) -> jax.Array:
    if layout.chunk > 1:
        items = items.reshape(-1, *items.shape[2:])
    return jnp.moveaxis(items[:length], 0, layout.axis)
