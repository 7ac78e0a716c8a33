"""quantize, dequantize and gemm of matrices whose rows belong to groups."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi

from steelyard.formats.schemes import Scheme
from steelyard.jax import grouped_layout, native, reference
from steelyard.jax.copies import CopySpec, Parts, flat_parts, pair_of
from steelyard.jax.primitives import (
    new_primitive,
    none_given,
    or_none,
    register_lowerings,
    result_avals,
    scheme_attribute,
    spec_attributes,
)


def quantize(
    x: jax.Array, sizes: jax.Array, row: Scheme | None, col: Scheme | None, *, scale=None, rng=None
) -> tuple[Parts | None, Parts | None]:
    """Copies of a matrix, each group with its own amax; `scale`: one per group."""
    operands = [none_given() if scale is None else scale, none_given(jnp.uint32) if rng is None else rng]
    flat = grouped_quantize_p.bind(x, sizes, *operands, row=row, col=col, path=native.traced_path())
    return pair_of(flat, row, col)


def dequantize(parts: Parts, sizes: jax.Array, spec: CopySpec, dtype) -> jax.Array:
    """The values of a grouped copy; rows of no group are zero."""
    operands = [none_given() if part is None else part for part in parts]
    (out,) = grouped_dequantize_p.bind(*operands, sizes, spec=spec, dtype=np.dtype(dtype), path=native.traced_path())
    return out


def gemm(
    a: Parts, a_spec: CopySpec, b: Parts, b_spec: CopySpec, sizes: jax.Array, *, both: bool, bias=None, out_dtype
) -> jax.Array:
    """One product per group: (M, outer of b) if only `a` is grouped; (groups, outer of a, outer of b) if `both` are."""
    operands = [none_given() if part is None else part for part in (*a, *b)]
    bias = none_given() if bias is None else bias
    parameters = {"a_spec": a_spec, "b_spec": b_spec, "both": both, "dtype": np.dtype(out_dtype)}
    (out,) = grouped_gemm_p.bind(*operands, sizes, bias, **parameters, path=native.traced_path())
    return out


grouped_quantize_p = new_primitive("grouped_quantize")
grouped_dequantize_p = new_primitive("grouped_dequantize")
grouped_gemm_p = new_primitive("grouped_gemm")


def _specs(x, row, col) -> list[CopySpec]:
    return [CopySpec(s, columnwise, x.shape) for s, columnwise in ((row, False), (col, True)) if s is not None]


def _quantize_types(x, sizes, row, col) -> list[tuple]:
    return [each for spec in _specs(x, row, col) for each in grouped_layout.part_types(spec, sizes.shape[0])]


def _gemm_type(sizes, a_spec, b_spec, both, dtype) -> tuple:
    leading = (sizes.shape[0], a_spec.outer) if both else (a_spec.shape[0],)
    return (*leading, b_spec.outer), dtype


@grouped_quantize_p.def_abstract_eval
def _quantize_abstract(x, sizes, *operands, row, col, path):
    return result_avals((x, sizes, *operands), _quantize_types(x, sizes, row, col))


@grouped_dequantize_p.def_abstract_eval
def _dequantize_abstract(*operands, spec, dtype, path):
    return result_avals(operands, [(spec.shape, dtype)])


@grouped_gemm_p.def_abstract_eval
def _gemm_abstract(*operands, a_spec, b_spec, both, dtype, path):
    return result_avals(operands, [_gemm_type(operands[6], a_spec, b_spec, both, dtype)])


def _quantize_native(x, sizes, scale, rng, *, row, col):
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in _quantize_types(x, sizes, row, col)]
    return ffi.ffi_call("steelyard_grouped_quantize", types)(
        x,
        sizes,
        scale,
        none_given(),
        none_given(),
        rng,
        row_scheme=scheme_attribute(row),
        col_scheme=scheme_attribute(col),
        row_epsilon=np.float32(row.epsilon if row else 0),
        col_epsilon=np.float32(col.epsilon if col else 0),
    )


def _dequantize_native(codes, scales, amax, sizes, *, spec, dtype):
    types = [jax.ShapeDtypeStruct(spec.shape, dtype)]
    attributes = {"scheme": scheme_attribute(spec.scheme), "columnwise": spec.columnwise}
    return ffi.ffi_call("steelyard_grouped_dequantize", types)(codes, scales, amax, sizes, **attributes)


def _gemm_native(*operands, a_spec, b_spec, both, dtype):
    types = [jax.ShapeDtypeStruct(*_gemm_type(operands[6], a_spec, b_spec, both, dtype))]
    attributes = spec_attributes("a", a_spec) | spec_attributes("b", b_spec)
    return ffi.ffi_call("steelyard_grouped_gemm", types)(*operands, **attributes)


def _quantize_reference(x, sizes, scale, rng, *, row, col):
    groups = sizes.shape[0]
    each = grouped_layout.spread_rows(x, sizes)
    given = {"scale": or_none(scale)}
    if rng.shape != (0,):
        # The high word of the offset gives each group its own random bytes.
        given["rng"] = jnp.tile(rng, (groups, 1)).at[:, 3].add(jnp.arange(groups, dtype=jnp.uint32))
    flat = []
    for spec in _specs(x, row, col):
        own = {name: value for name, value in given.items() if value is not None}
        if spec.scheme.family != "tensor":
            own.pop("scale", None)
        made = jax.vmap(lambda x, own, spec=spec: flat_parts(reference.quantize(x, spec, **own)))(each, own)
        flat += grouped_layout.collect(made, spec, sizes)
    return flat


def _dequantize_reference(codes, scales, amax, sizes, *, spec, dtype):
    parts = grouped_layout.spread(Parts(codes, scales, or_none(amax)), spec, sizes)
    values = jax.vmap(lambda parts: reference.dequantize(parts, spec, dtype))(parts)
    return [grouped_layout.collect_rows(values, sizes)]


def _gemm_reference(*operands, a_spec, b_spec, both, dtype):
    sizes, bias = operands[6], or_none(operands[7])
    a, b = (Parts(codes, scales, or_none(amax)) for codes, scales, amax in (operands[:3], operands[3:6]))
    a = grouped_layout.spread(a, a_spec, sizes)
    b = grouped_layout.spread(b, b_spec, sizes) if both else b
    out = jax.vmap(lambda a, b, bias: reference.gemm(a, a_spec, b, b_spec, bias, dtype))(a, b, bias)
    return [out if both else grouped_layout.collect_rows(out, sizes)]


register_lowerings(grouped_quantize_p, _quantize_native, _quantize_reference)
register_lowerings(grouped_dequantize_p, _dequantize_native, _dequantize_reference)
register_lowerings(grouped_gemm_p, _gemm_native, _gemm_reference)
