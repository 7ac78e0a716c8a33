"""Shardings that are part of types, as under meshes with explicit axes: those of what our operations return.

They follow `partitioning`: a dim is split if no block spans two shards, and products over a split dim are summed.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from steelyard.formats.schemes import Scheme
from steelyard.jax.copies import CopySpec
from steelyard.jax.internals import ShardingTypeError
from steelyard.jax.partitioning import Dims, Split, block_units, part_dims


def of_quantize(x: Any, row: Scheme | None, col: Scheme | None) -> list[PartitionSpec] | None:
    """The shardings of the parts of copies; None if that of the matrix is not part of its type."""
    schemes = [(scheme, columnwise) for scheme, columnwise in ((row, False), (col, True)) if scheme is not None]
    if not any(x.sharding.spec) or any(scheme.rounding == "stochastic" for scheme, _ in schemes):
        return None
    *batch, rows, columns = x.shape
    specs = [CopySpec(scheme, columnwise, (rows, columns)) for scheme, columnwise in schemes]
    units = [math.lcm(*each) for each in zip(*map(block_units, specs), strict=True)]
    split = Split(x.sharding.mesh, {"m": rows, "n": columns}, dict(zip("mn", units, strict=True)))
    for name, axes in zip("mn", x.sharding.spec[-2:], strict=True):
        split.take(name, axes)
    parts = [dims for spec in specs for dims in part_dims(spec, "m", "n")]
    return [_spec(split, len(batch), dims) for dims in parts]


def of_dequantize(codes: Any, spec: CopySpec) -> list[PartitionSpec] | None:
    """The same of the values of a copy."""
    if not any(codes.sharding.spec):
        return None
    units = dict(zip("mn", block_units(spec), strict=True))
    split = Split(codes.sharding.mesh, dict(zip("mn", spec.shape, strict=True)), units)
    for name, axes in zip(part_dims(spec, "m", "n")[0], codes.sharding.spec[-2:], strict=True):
        split.take(str(name), axes)
    return [_spec(split, codes.ndim - 2, ("m", "n"))]


def of_gemm(a: Any, a_spec: CopySpec, b: Any, b_spec: CopySpec) -> list[PartitionSpec] | None:
    """The same of the product of two copies, given by their codes."""
    if not any((*a.sharding.spec, *b.sharding.spec)):
        return None
    mesh = a.sharding.mesh if any(a.sharding.spec) else b.sharding.mesh
    split = Split(mesh, {"i": a_spec.outer, "j": b_spec.outer}, {"i": 1, "j": 1})
    for name, codes, spec in (("i", a, a_spec), ("j", b, b_spec)):
        dims = part_dims(spec, *(("k", name) if spec.columnwise else (name, "k")))[0]
        split.take(name, dict(zip(dims, codes.sharding.spec[-2:], strict=True))[name])
    return [_spec(split, max(a.ndim, b.ndim) - 2, ("i", "j"))]


def _spec(split: Split, batch: int, dims: Dims) -> PartitionSpec:
    return PartitionSpec(*[None] * batch, *split.sharding(dims).spec)


def placed_as(value: Any, like: Any) -> Any:
    """A value whose type has the sharding of another: that of a gradient is that of its primal."""
    if like.sharding.mesh.empty or jax.typeof(value).sharding.spec == like.sharding.spec:
        return value
    return jax.reshard(value, like.sharding)


def gathered(value: Any) -> Any:
    """A value whose type has no dim that is split."""
    sharding = jax.typeof(value).sharding
    if not any(sharding.spec):
        return value
    return jax.reshard(value, sharding.update(spec=PartitionSpec(*[None] * value.ndim)))


def reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    """A value in another shape; if JAX cannot say how that is split, it is gathered."""
    try:
        return jnp.reshape(value, shape)
    except ShardingTypeError:
        return jnp.reshape(gathered(value), shape)
