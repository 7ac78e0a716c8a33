"""Products with one part of a stack of quantized matrices, such as the weights of the layers in a loop.

XLA copies the part of a stack that a trip reads. On one CPU device the handler reads it where it lies instead.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import ffi, lax
from jax.interpreters import batching, mlir

from steelyard.jax import native, packed, primitives
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.primitives import new_primitive, none_given, or_none, result_avals, spec_attributes

stacked_gemm_p = new_primitive("stacked_gemm")


def gemm(a: Parts, a_spec: CopySpec, b: Parts, b_spec: CopySpec, number: jax.Array, *, out_dtype) -> jax.Array:
    """`a b[number]^T`, where `b` is a stack of copies."""
    return _bind(a, a_spec, (b.codes, b.scales, b.amax), b_spec, number, False, out_dtype)


def packed_gemm(a: Parts, a_spec: CopySpec, b: jax.Array, b_spec: CopySpec, number: jax.Array, *, out_dtype):
    """The same with a stack of packed copies."""
    return _bind(a, a_spec, (b, None, None), b_spec, number, True, out_dtype)


def part_of(stack: Any, number: jax.Array) -> Any:
    """One part of each array in a tree."""
    return jax.tree.map(lambda each: lax.dynamic_index_in_dim(each, number, 0, keepdims=False), stack)


def _bind(a: Parts, a_spec: CopySpec, b: tuple[Any, ...], b_spec: CopySpec, number, is_packed: bool, dtype):
    operands = [none_given() if each is None else each for each in (a.codes, a.scales, a.amax, *b)]
    (out,) = stacked_gemm_p.bind(
        *operands,
        number,
        a_spec=a_spec,
        b_spec=b_spec,
        is_packed=is_packed,
        dtype=np.dtype(dtype),
        path=native.traced_path(),
    )
    return out


@stacked_gemm_p.def_abstract_eval
def _abstract(*operands, a_spec, b_spec, is_packed, dtype, path):
    batch = operands[0].shape[:-2]
    return result_avals(operands, [((*batch, a_spec.outer, b_spec.outer), dtype)])


def _sliced(*operands, a_spec, b_spec, is_packed, dtype):
    """The product with a copy of the part."""
    (codes, scales, amax), stack, number = operands[:3], operands[3:6], operands[6]
    a = Parts(codes, scales, or_none(amax))
    b: list[Any] = [None if each.shape == (0,) else part_of(each, number) for each in stack]
    if is_packed:
        return [packed.packed_gemm(a, a_spec, b[0], b_spec, out_dtype=dtype)]
    return [primitives.gemm(a, a_spec, Parts(*b), b_spec, out_dtype=dtype)]


def _in_place(*operands, a_spec, b_spec, is_packed, dtype):
    types = [jax.ShapeDtypeStruct((a_spec.outer, b_spec.outer), dtype)]
    attributes = spec_attributes("a", a_spec) | spec_attributes("b", b_spec)
    attributes["b_scheme"] |= packed.PACKED_BIT if is_packed else np.int64(0)
    return ffi.ffi_call("steelyard_stacked_gemm", types)(*operands, **attributes)


def _lower_on_cpu(context, *operands, path, **parameters):
    devices = getattr(context.module_context.axis_context, "num_devices", None)
    is_matrix = len(context.avals_in[0].shape) == 2
    function = _in_place if path != "reference" and devices == 1 and is_matrix else _sliced
    return mlir.lower_fun(partial(function, **parameters), multiple_results=True)(context, *operands)


def _lower(context, *operands, path, **parameters):
    return mlir.lower_fun(partial(_sliced, **parameters), multiple_results=True)(context, *operands)


def _batch(operands, dims, *, path, **parameters):
    results = jax.vmap(partial(_sliced, **parameters), in_axes=dims)(*operands)
    return results, [0] * len(results)


batching.primitive_batchers[stacked_gemm_p] = _batch
mlir.register_lowering(stacked_gemm_p, _lower_on_cpu, platform="cpu")
mlir.register_lowering(stacked_gemm_p, _lower)
