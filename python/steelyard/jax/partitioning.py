"""How operations are split over devices: each device quantizes its shard, with the scales of the whole tensor.

Data, scales and amaxes of a copy are split in the same way. A dim is split only if no block spans two shards; otherwise
it is gathered first. Random bytes are drawn by the place in the whole tensor. So bytes never depend on the mesh.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

from steelyard.formats.schemes import Scheme
from steelyard.jax import reference, softfloat
from steelyard.jax.copies import CopySpec

Dims = tuple[str | None, ...]


def part_dims(spec: CopySpec, row: str, column: str) -> list[Dims]:
    """Which dim of the matrix each dim of a copy's parts belongs to."""
    stored = (column, row) if spec.is_stored_transposed else (row, column)
    scales = () if spec.scheme.family == "tensor" else stored
    dims = [stored, scales]
    if spec.scheme.family in ("tensor", "nvfp4"):
        dims.append(stored[:1] if spec.scheme.second_level == "row" else ())
    return dims


def block_units(spec: CopySpec) -> tuple[int, int]:
    """Rows and columns of the matrix that must stay in one shard."""
    if spec.scheme.family == "tensor":
        return 1, 1
    rows, columns = spec.scheme.block_sizes
    return (columns, rows) if spec.is_stored_transposed else (rows, columns)


class Split:
    """Mesh axes of the named dims of an operation."""

    def __init__(self, mesh, sizes: dict[str, int], units: dict[str, int]):
        self.mesh, self.sizes, self.units = mesh, sizes, units
        self.axes: dict[str, Any] = dict.fromkeys(sizes)

    def take(self, name: str, axes: Any) -> None:
        """Split a dim, unless blocks would span shards or another dim already uses the axes."""
        names = _names(axes)
        used = {each for other in self.axes.values() for each in _names(other)}
        shards = math.prod(self.mesh.shape[each] for each in names)
        if names and not used & set(names) and self.sizes[name] % (shards * self.units[name]) == 0:
            self.axes[name] = axes

    def local(self, name: str) -> int:
        return self.sizes[name] // math.prod(self.mesh.shape[each] for each in _names(self.axes[name]))

    def sharding(self, dims: Dims) -> NamedSharding:
        entries = [None if dim is None else self.axes[dim] for dim in dims]
        return NamedSharding(self.mesh, PartitionSpec(*entries))


def _names(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _found_axes(shape: Any) -> tuple:
    """The mesh axes of each dim of an argument; none under a mesh that no array is placed on, which has no names."""
    spec = tuple(shape.sharding.spec) if isinstance(shape.sharding, NamedSharding) else ()
    return spec + (None,) * (len(shape.shape) - len(spec))


def _rule(
    mesh, sizes: dict[str, int], units: dict[str, int], arrays: list[tuple[Dims, tuple]], operands: int, reduced=()
):
    """Shardy's rule. Named dims are counted in blocks: every array with that dim has the same number of them.

    A dim whose blocks an axis of the mesh does not divide has no name: Shardy would split it over a part of the axis.
    """
    factor_sizes: dict[str, int] = {}
    whole: set[str] = set()
    unique = iter(f"u{index}" for index in range(1000))

    def factor(name: str | None, size: int):
        blocks = 0 if name is None or sizes[name] % units[name] else sizes[name] // units[name]
        if name is None or blocks == 0 or size % blocks or any(blocks % axis for axis in mesh.shape.values()):
            return next(unique)
        if size == blocks:
            whole.add(name)
            return name
        inner = next(unique)
        factor_sizes[inner] = size // blocks
        factor_sizes.setdefault(name, blocks)
        return CompoundFactor(name, inner)

    mappings = [
        ArrayMapping(*(factor(name, size) for name, size in zip(dims, shape, strict=True))) for dims, shape in arrays
    ]
    named = {each for mapping in mappings for dim in mapping for each in (dim if isinstance(dim, tuple) else (dim,))}
    inner: dict[str, Any] = {name: size for name, size in factor_sizes.items() if name not in whole}
    reductions = tuple(name for name in reduced if name in named)
    return SdyShardingRule(
        tuple(mappings[:operands]), tuple(mappings[operands:]), reduction_factors=reductions, **inner
    )


def _shapes(types) -> list[tuple]:
    return [tuple(each.shape) for each in types]


def _partitioned(function: Callable, partition: Callable, rule: Callable) -> Callable:
    """Results and shardings as tuples, which JAX compares as trees."""

    def partition_as_tuples(*arguments):
        mesh, lower, results, operands = partition(*arguments)
        return mesh, lambda *shards: tuple(lower(*shards)), tuple(results), tuple(operands)

    wrapped = custom_partitioning(lambda *operands: tuple(function(*operands)))
    wrapped.def_partition(partition=partition_as_tuples, sharding_rule=rule)
    return wrapped


@cache
def quantize(function: Callable, row: Scheme | None, col: Scheme | None, ndim: int) -> Callable:
    """`function(x, scale, row_amax, col_amax, rng, row=, col=)`, split as its input is; leading dims stay whole."""
    schemes = [(s, columnwise) for s, columnwise in ((row, False), (col, True)) if s is not None]
    batch: Dims = (None,) * (ndim - 2)

    def describe(shape):
        specs = [CopySpec(s, columnwise, shape[-2:]) for s, columnwise in schemes]
        units = [block_units(spec) for spec in specs]
        sizes = {"m": shape[-2], "n": shape[-1]}
        return specs, sizes, {"m": math.lcm(*(u[0] for u in units)), "n": math.lcm(*(u[1] for u in units))}

    def result_dims(specs):
        return [(*batch, *dims) for spec in specs for dims in part_dims(spec, "m", "n")]

    def rule(mesh, operands, results):
        specs, sizes, units = describe(tuple(operands[0].shape))
        dims = [(*batch, "m", "n"), *((None,) * len(o.shape) for o in operands[1:]), *result_dims(specs)]
        return _rule(mesh, sizes, units, list(zip(dims, _shapes((*operands, *results)), strict=True)), len(operands))

    def partition(mesh, arguments, results):
        specs, sizes, units = describe(arguments[0].shape)
        split = Split(mesh, sizes, units)
        *_, rows, columns = _found_axes(arguments[0])
        split.take("m", rows)
        split.take("n", columns)
        given: list[Dims] = [(None,) * len(each.shape) for each in arguments[1:]]
        for index, (scheme, name) in enumerate(((row, "m"), (col, "n")), start=1):
            if scheme is not None and scheme.second_level == "row" and arguments[index + 1].shape != (0,):
                given[index] = (*batch, name)
        argument_dims = [(*batch, "m", "n"), *given]
        lower = partial(_quantize_shard, function, row, col, split)
        return (
            mesh,
            lower,
            [split.sharding(dims) for dims in result_dims(specs)],
            [split.sharding(dims) for dims in argument_dims],
        )

    return _partitioned(lambda *operands: function(*operands, row=row, col=col), partition, rule)


def _quantize_shard(function, row, col, split: Split, x, scale, row_amax, col_amax, rng):
    """Quantize a shard with the amaxes, and the random bytes, of the whole tensor."""
    axes, amaxes = split.axes, []
    for scheme, amax, columnwise in ((row, row_amax, False), (col, col_amax, True)):
        if scheme is None or scheme.family not in ("tensor", "nvfp4") or amax.shape != (0,):
            amaxes.append(amax)
            continue
        over = _names(axes["m"]) + _names(axes["n"])
        if scheme.second_level == "row":
            over = _names(axes["m" if columnwise else "n"])
        amaxes.append(_amax_over(function, x, scheme, columnwise, scale, rng, over) if over else amax)
    if rng.shape != (0,) and any(_names(each) for each in axes.values()):
        rng = _with_place(rng, split)
    return function(x, scale, *amaxes, rng, row=row, col=col)


def _with_place(rng: jax.Array, split: Split) -> jax.Array:
    """Seed and offset, then where this device's shard begins, and the size of the whole."""
    starts = [
        jax.lax.axis_index(_names(axes)) * split.local(name) if axes is not None else 0
        for name, axes in split.axes.items()
    ]
    place = jnp.stack([jnp.asarray(each, jnp.uint32) for each in (*starts, *split.sizes.values())])
    return jnp.concatenate([rng, jnp.broadcast_to(place, (*rng.shape[:-1], 4))], axis=-1)


def _amax_over(function, x, scheme: Scheme, columnwise: bool, scale, rng, over: tuple[str, ...]) -> jax.Array:
    """The largest amax of all shards, compared as bits, so that NaN is the largest."""
    if scheme.rht:
        none = jnp.zeros((0,), jnp.float32)
        pair = {"row": None, "col": scheme} if columnwise else {"row": scheme, "col": None}
        bits = softfloat.bits_of(function(x, scale, none, none, rng, **pair)[2])
    else:
        per_row = scheme.second_level == "row"
        axis = (-2 if columnwise else -1) if per_row else (-2, -1)
        bits = reference.amax_of(softfloat.bits_of(x), axis)
    return softfloat.floats_of(jax.lax.pmax(bits, over))


@cache
def dequantize(function: Callable, spec: CopySpec, dtype, ndim: int) -> Callable:
    """`function(codes, scales, amax, spec=, dtype=)`, split as its codes are."""
    batch: Dims = (None,) * (ndim - 2)
    units = dict(zip("mn", block_units(spec), strict=True))
    sizes = dict(zip("mn", spec.shape, strict=True))
    dims = [(*batch, *each) for each in part_dims(spec, "m", "n")]
    out: Dims = (*batch, "m", "n")

    def all_dims(shapes):
        return [*dims, *[(None,) * len(shape) for shape in shapes[len(dims) : 3]], out]

    def rule(mesh, operands, results):
        shapes = _shapes((*operands, *results))
        return _rule(mesh, sizes, units, list(zip(all_dims(shapes), shapes, strict=True)), len(operands))

    def partition(mesh, arguments, results):
        split = Split(mesh, sizes, units)
        for name, axes in zip(dims[0], _found_axes(arguments[0]), strict=True):
            if name is not None:
                split.take(name, axes)
        local = CopySpec(spec.scheme, spec.columnwise, (split.local("m"), split.local("n")))
        *arguments_dims, result = all_dims([each.shape for each in arguments])
        lower = partial(function, spec=local, dtype=dtype)
        return mesh, lower, [split.sharding(result)], [split.sharding(each) for each in arguments_dims]

    return _partitioned(lambda *operands: function(*operands, spec=spec, dtype=dtype), partition, rule)


@cache
def gemm(function: Callable, a_spec: CopySpec, b_spec: CopySpec, dtype, ndim: int) -> Callable:
    """`function(*a, *b, bias, a_spec=, b_spec=, dtype=)`: kept dims stay split, sums over a split dim are reduced."""
    batch: Dims = (None,) * (ndim - 2)
    sizes = {"i": a_spec.outer, "j": b_spec.outer, "k": a_spec.reduced}
    units: dict[str, int] = {"k": 1}
    dims: list[Dims] = []
    for spec, outer in ((a_spec, "i"), (b_spec, "j")):
        row, column = ("k", outer) if spec.columnwise else (outer, "k")
        by_dim = dict(zip((row, column), block_units(spec), strict=True))
        units |= {outer: by_dim[outer], "k": math.lcm(units["k"], by_dim["k"])}
        parts = [(*batch, *each) for each in part_dims(spec, row, column)]
        dims += [*parts, *[None] * (3 - len(parts))]
    out: Dims = (*batch, "i", "j")

    def all_dims(shapes):
        fitted = [each if each is not None else (None,) * len(shape) for each, shape in zip(dims, shapes, strict=False)]
        return [*fitted, (None,) if shapes[6] == (0,) else ("j",), out]

    def rule(mesh, operands, results):
        shapes = _shapes((*operands, *results))
        arrays = list(zip(all_dims(shapes), shapes, strict=True))
        return _rule(mesh, sizes, units, arrays, len(operands), reduced=("k",))

    def partition(mesh, arguments, results):
        split = Split(mesh, sizes, units)
        found = [dict(zip(dims[first], _found_axes(arguments[first]), strict=True)) for first in (0, 3)]
        split.take("i", found[0]["i"])
        split.take("j", found[1]["j"])
        if found[0]["k"] == found[1]["k"]:
            split.take("k", found[0]["k"])
        local = [_local_spec(spec, split, outer) for spec, outer in ((a_spec, "i"), (b_spec, "j"))]
        *argument_dims, result = all_dims([each.shape for each in arguments])
        lower = partial(_gemm_shard, function, *local, dtype, _names(split.axes["k"]))
        return mesh, lower, [split.sharding(result)], [split.sharding(each) for each in argument_dims]

    return _partitioned(
        lambda *operands: function(*operands, a_spec=a_spec, b_spec=b_spec, dtype=dtype), partition, rule
    )


def _local_spec(spec: CopySpec, split: Split, outer: str) -> CopySpec:
    rows, columns = ("k", outer) if spec.columnwise else (outer, "k")
    return CopySpec(spec.scheme, spec.columnwise, (split.local(rows), split.local(columns)))


def _gemm_shard(function, a_spec, b_spec, dtype, over: tuple[str, ...], *operands):
    if not over:
        return function(*operands, a_spec=a_spec, b_spec=b_spec, dtype=dtype)
    *parts, bias = operands
    none = jnp.zeros((0,), jnp.float32)
    (product,) = function(*parts, none, a_spec=a_spec, b_spec=b_spec, dtype=jnp.dtype(jnp.float32))
    total = jax.lax.psum(product, over)
    if bias.shape != (0,):
        total = total + bias.astype(jnp.float32)
    return [total.astype(dtype)]
