"""The operations that programs are traced into: quantize, dequantize and gemm, over leading batch dims.

On a CPU each is one XLA custom call of a native handler; elsewhere, and on request, it is the reference in jnp. A
missing operand is an empty array, so that every operation has a fixed number of operands.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import PartitionSpec

from steelyard.errors import UnsupportedModelError
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.formats.schemes import Scheme
from steelyard.jax import explicit, native, partitioning, reference
from steelyard.jax.copies import CopySpec, Parts, flat_parts, pair_of
from steelyard.jax.internals import devices_at_lowering


def none_given(dtype=jnp.float32) -> jax.Array:
    """What is passed for a missing operand."""
    return jnp.zeros((0,), dtype)


def or_none(array: jax.Array) -> jax.Array | None:
    return None if array.shape == (0,) else array


def quantize(
    x: jax.Array, row: Scheme | None, col: Scheme | None, *, scale=None, row_amax=None, col_amax=None, rng=None
) -> tuple[Parts | None, Parts | None]:
    """The rowwise and the columnwise copy of matrices (..., M, N); the other operands have the same batch dims."""
    operands = [
        none_given(dtype) if each is None else each
        for each, dtype in ((scale, jnp.float32), (row_amax, jnp.float32), (col_amax, jnp.float32), (rng, jnp.uint32))
    ]
    flat = quantize_p.bind(x, *operands, row=row, col=col, path=native.traced_path())
    return pair_of(flat, row, col)


def dequantize(parts: Parts, spec: CopySpec, dtype) -> jax.Array:
    """The values of a copy, (..., M, N)."""
    amax = none_given() if parts.amax is None else parts.amax
    (out,) = dequantize_p.bind(
        parts.codes, parts.scales, amax, spec=spec, dtype=np.dtype(dtype), path=native.traced_path()
    )
    return out


def gemm(a: Parts, a_spec: CopySpec, b: Parts, b_spec: CopySpec, *, bias=None, out_dtype) -> jax.Array:
    """`a b^T (+ bias)`, each operand reduced along the dim that its copy is quantized along."""
    operands = [none_given() if each is None else each for each in (*a, *b, bias)]
    (out,) = gemm_p.bind(*operands, a_spec=a_spec, b_spec=b_spec, dtype=np.dtype(out_dtype), path=native.traced_path())
    return out


def new_primitive(name: str) -> Primitive:
    primitive = Primitive(f"steelyard_{name}")
    primitive.multiple_results = True
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    # Partitioning needs the devices.
    devices_at_lowering.add(primitive)
    ad.primitive_jvps[primitive] = partial(_refuse_gradients, name)
    return primitive


def _refuse_gradients(name: str, *_: Any, **__: Any) -> Any:
    raise UnsupportedModelError(
        f"gradients must be those of a compiled function or a dense layer, got one of {name} itself; take gradients of "
        "calls with parameters, not with quantized weights, and no second derivatives"
    )


quantize_p = new_primitive("quantize")
dequantize_p = new_primitive("dequantize")
gemm_p = new_primitive("gemm")


def result_avals(operands, types, specs: list[PartitionSpec] | None = None) -> list[ShapedArray]:
    """Abstract results. They vary over the axes of a shard_map that any operand varies over.

    `specs` are their shardings where those are part of types.
    """
    like = max(operands, key=lambda aval: (len(aval.manual_axis_type.varying), not aval.sharding.mesh.empty))
    specs = [PartitionSpec(*(None,) * len(shape)) for shape, _ in types] if specs is None else specs
    return [
        ShapedArray(shape, dtype, sharding=like.sharding.update(spec=spec), manual_axis_type=like.manual_axis_type)
        for (shape, dtype), spec in zip(types, specs, strict=True)
    ]


def _quantize_types(x, row, col) -> list[tuple]:
    *batch, M, N = x.shape
    specs = [CopySpec(s, columnwise, (M, N)) for s, columnwise in ((row, False), (col, True)) if s is not None]
    return [((*batch, *shape), dtype) for spec in specs for shape, dtype in spec.part_types()]


@quantize_p.def_abstract_eval
def _quantize_abstract(x, *operands, row, col, path):
    return result_avals((x, *operands), _quantize_types(x, row, col), explicit.of_quantize(x, row, col))


@dequantize_p.def_abstract_eval
def _dequantize_abstract(codes, scales, amax, *, spec, dtype, path):
    types = [((*codes.shape[:-2], *spec.shape), dtype)]
    return result_avals((codes, scales, amax), types, explicit.of_dequantize(codes, spec))


@gemm_p.def_abstract_eval
def _gemm_abstract(*operands, a_spec, b_spec, dtype, path):
    batch = np.broadcast_shapes(operands[0].shape[:-2], operands[3].shape[:-2])
    specs = explicit.of_gemm(operands[0], a_spec, operands[3], b_spec)
    return result_avals(operands, [((*batch, a_spec.outer, b_spec.outer), dtype)], specs)


def _batched(array: jax.Array, size: int) -> jax.Array:
    """An operand without the batch dim gets it; a missing operand stays missing."""
    return array if array.shape == (0,) else jnp.broadcast_to(array, (size, *array.shape))


def batch_everything(primitive, operands, dims, **parameters):
    """Put the batch dim first in every operand."""
    size = next(operand.shape[dim] for operand, dim in zip(operands, dims, strict=True) if dim is not None)
    moved = [
        _batched(operand, size) if dim is None else jnp.moveaxis(operand, dim, 0)
        for operand, dim in zip(operands, dims, strict=True)
    ]
    results = primitive.bind(*moved, **parameters)
    return results, [0] * len(results)


def _batch_gemm(operands, dims, **parameters):
    """An operand that is not batched gets a dim of size 1, which broadcasts: nothing is copied."""
    *parts, bias = operands
    *part_dims, bias_dim = dims
    moved = []
    for operand, dim in zip(parts, part_dims, strict=True):
        if dim is not None:
            moved.append(jnp.moveaxis(operand, dim, 0))
        else:
            moved.append(operand if operand.shape == (0,) else operand[None])
    moved = _align_batch_dims(moved)
    if bias_dim is None:
        results = gemm_p.bind(*moved, bias, **parameters)
        return results, [0]
    wide = {**parameters, "dtype": np.dtype(jnp.float32)}
    (product,) = gemm_p.bind(*moved, none_given(), **wide)
    bias = jnp.moveaxis(bias, bias_dim, 0)
    total = product + jnp.expand_dims(bias, range(1, product.ndim - 1)).astype(jnp.float32)
    return [total.astype(parameters["dtype"])], [0]


def _align_batch_dims(parts: list[jax.Array]) -> list[jax.Array]:
    """Give both operands the same number of leading dims; the parts of an operand have the batch size of its codes."""
    aligned = []
    batches = [parts[0].shape[:-2], parts[3].shape[:-2]]
    depth = max(map(len, batches))
    for first, batch in zip((0, 3), batches, strict=True):
        missing = depth - len(batch)
        for part in parts[first : first + 3]:
            # The new dim is the leading one; older dims that are missing come after it.
            aligned.append(part if part.shape == (0,) else jnp.expand_dims(part, range(1, 1 + missing)))
    return aligned


for _primitive in (quantize_p, dequantize_p):
    batching.primitive_batchers[_primitive] = partial(batch_everything, _primitive)
batching.primitive_batchers[gemm_p] = _batch_gemm


def _over_batch(function, depth: int):
    """Apply a function of matrices over leading dims."""
    for _ in range(depth):
        function = jax.vmap(function)
    return function


def _quantize_reference(x, scale, row_amax, col_amax, rng, *, row, col):
    given = {"scale": scale, "row_amax": row_amax, "col_amax": col_amax, "rng": rng}
    given = {name: array for name, array in given.items() if array.shape != (0,)}

    def matrix(x, given):
        flat = []
        for scheme, columnwise, amax in ((row, False, "row_amax"), (col, True, "col_amax")):
            if scheme is not None:
                flat += flat_parts(
                    reference.quantize(
                        x,
                        CopySpec(scheme, columnwise, x.shape),
                        scale=given.get("scale") if scheme.family == "tensor" else None,
                        amax=given.get(amax),
                        rng=given.get("rng"),
                    )
                )
        return flat

    return _over_batch(matrix, x.ndim - 2)(x, given)


def _dequantize_reference(codes, scales, amax, *, spec, dtype):
    parts = Parts(codes, scales, or_none(amax))
    return [_over_batch(lambda parts: reference.dequantize(parts, spec, dtype), codes.ndim - 2)(parts)]


def _gemm_reference(*operands, a_spec, b_spec, dtype):
    bias = or_none(operands[6])
    batch = np.broadcast_shapes(operands[0].shape[:-2], operands[3].shape[:-2])
    depth = len(batch)
    copies = []
    for codes, scales, amax in (operands[:3], operands[3:6]):
        whole = [codes, scales, *([] if amax.shape == (0,) else [amax])]
        whole = [jnp.broadcast_to(part, (*batch, *part.shape[depth:])) for part in whole]
        copies.append(Parts(*whole))
    product = _over_batch(lambda a, b: reference.gemm(a, a_spec, b, b_spec, bias, dtype), depth)
    return [product(*copies)]


def scheme_attribute(scheme: Scheme | None) -> np.int64:
    return np.int64(-1 if scheme is None else scheme_bits(scheme))


def _quantize_native(x, *operands, row, col):
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in _quantize_types(x, row, col)]
    return ffi.ffi_call("steelyard_quantize", types)(
        x,
        *operands,
        row_scheme=scheme_attribute(row),
        col_scheme=scheme_attribute(col),
        row_epsilon=np.float32(row.epsilon if row else 0),
        col_epsilon=np.float32(col.epsilon if col else 0),
    )


def _dequantize_native(codes, scales, amax, *, spec, dtype):
    types = [jax.ShapeDtypeStruct((*codes.shape[:-2], *spec.shape), dtype)]
    return ffi.ffi_call("steelyard_dequantize", types)(
        codes, scales, amax, scheme=scheme_attribute(spec.scheme), columnwise=spec.columnwise
    )


def spec_attributes(prefix: str, spec: CopySpec) -> dict:
    """The attributes that describe an operand to a handler."""
    return {
        f"{prefix}_scheme": scheme_attribute(spec.scheme),
        f"{prefix}_columnwise": spec.columnwise,
        f"{prefix}_rows": np.int64(spec.shape[0]),
        f"{prefix}_columns": np.int64(spec.shape[1]),
    }


def _gemm_native(*operands, a_spec, b_spec, dtype):
    batch = np.broadcast_shapes(operands[0].shape[:-2], operands[3].shape[:-2])
    types = [jax.ShapeDtypeStruct((*batch, a_spec.outer, b_spec.outer), dtype)]
    attributes = spec_attributes("a", a_spec) | spec_attributes("b", b_spec)
    return ffi.ffi_call("steelyard_gemm", types)(*operands, **attributes)


def register_lowerings(primitive: Primitive, on_cpu, anywhere) -> None:
    """Native on a CPU unless the reference was requested; the reference everywhere else."""

    def lower(function, context, *operands, path, **parameters):
        chosen = anywhere if path == "reference" else function
        return mlir.lower_fun(partial(chosen, **parameters), multiple_results=True)(context, *operands)

    mlir.register_lowering(primitive, partial(lower, on_cpu), platform="cpu")
    mlir.register_lowering(primitive, partial(lower, anywhere))


def _quantize_partitioned(x, *operands, row, col):
    return partitioning.quantize(_quantize_native, row, col, x.ndim)(x, *operands)


def _dequantize_partitioned(codes, *operands, spec, dtype):
    return partitioning.dequantize(_dequantize_native, spec, dtype, codes.ndim)(codes, *operands)


def _gemm_partitioned(*operands, a_spec, b_spec, dtype):
    return partitioning.gemm(_gemm_native, a_spec, b_spec, dtype, operands[0].ndim)(*operands)


register_lowerings(quantize_p, _quantize_partitioned, _quantize_reference)
register_lowerings(dequantize_p, _dequantize_partitioned, _dequantize_reference)
register_lowerings(gemm_p, _gemm_partitioned, _gemm_reference)
