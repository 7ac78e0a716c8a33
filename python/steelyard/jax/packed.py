"""FP4 weights packed once for the products of the CPU, as operations that programs are traced into."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi
from jax.interpreters import batching, mlir

from steelyard.errors import TargetError
from steelyard.formats.parts import can_pack, packed_size
from steelyard.formats.schemes import Scheme
from steelyard.jax import native
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.primitives import (
    batch_everything,
    new_primitive,
    none_given,
    result_avals,
    scheme_attribute,
    spec_attributes,
)

PACKED_BIT = np.int64(1 << 15)
"""What tells a GEMM that an operand is packed: `kPackedField` of runtime/cpu/formats/scheme.h."""


def is_packed_by(scheme: Scheme) -> bool:
    """Whether programs that are traced now pack weights of a scheme."""
    path = native.traced_path()
    is_native = path == "native" or (path == "auto" and jax.default_backend() == "cpu")
    return is_native and can_pack(scheme)


def pack(parts: Parts, spec: CopySpec) -> jax.Array:
    """A compact FP4 copy, packed."""
    amax = none_given() if parts.amax is None else parts.amax
    (packed,) = pack_p.bind(parts.codes, parts.scales, amax, spec=spec)
    return packed


def packed_gemm(a: Parts, a_spec: CopySpec, packed: jax.Array, b_spec: CopySpec, *, out_dtype) -> jax.Array:
    """`a b^T` with a packed `b`."""
    amax = none_given() if a.amax is None else a.amax
    operands = (a.codes, a.scales, amax, packed)
    (out,) = packed_gemm_p.bind(*operands, a_spec=a_spec, b_spec=b_spec, dtype=np.dtype(out_dtype))
    return out


pack_p = new_primitive("pack")
packed_gemm_p = new_primitive("packed_gemm")


def _pack_type(codes, spec: CopySpec) -> tuple:
    return (*codes.shape[:-2], packed_size(spec.scheme, *spec.stored)), jnp.uint8


@pack_p.def_abstract_eval
def _pack_abstract(codes, scales, amax, *, spec):
    return result_avals((codes, scales, amax), [_pack_type(codes, spec)])


@packed_gemm_p.def_abstract_eval
def _packed_gemm_abstract(*operands, a_spec, b_spec, dtype):
    batch = np.broadcast_shapes(operands[0].shape[:-2], operands[3].shape[:-1])
    return result_avals(operands, [((*batch, a_spec.outer, b_spec.outer), dtype)])


def _pack_native(codes, scales, amax, *, spec):
    columns, k = spec.stored
    types = [jax.ShapeDtypeStruct(*_pack_type(codes, spec))]
    attributes = {"scheme": scheme_attribute(spec.scheme), "columns": np.int64(columns), "k": np.int64(k)}
    return ffi.ffi_call("steelyard_pack", types)(codes, scales, amax, **attributes)


def _packed_gemm_native(codes, scales, amax, packed, *, a_spec, b_spec, dtype):
    batch = np.broadcast_shapes(codes.shape[:-2], packed.shape[:-1])
    depth = len(batch)
    parts = [_with_leading(part, depth - (codes.ndim - 2)) for part in (codes, scales, amax)]
    packed = _with_leading(packed, depth - (packed.ndim - 1))
    types = [jax.ShapeDtypeStruct((*batch, a_spec.outer, b_spec.outer), dtype)]
    attributes = spec_attributes("a", a_spec) | spec_attributes("b", b_spec)
    attributes["b_scheme"] |= PACKED_BIT
    none = none_given()
    return ffi.ffi_call("steelyard_gemm", types)(*parts, packed, none, none, none, **attributes)


def _with_leading(array: jax.Array, missing: int) -> jax.Array:
    return array if array.shape == (0,) else array.reshape((1,) * missing + array.shape)


def _refuse(*operands, **parameters):
    raise TargetError("packed weights are multiplied by the native kernels of a CPU; quantize them for this platform")


def _batch_packed_gemm(operands, dims, **parameters):
    """What is not batched gets a dim of size 1, which broadcasts."""
    moved = []
    for operand, dim in zip(operands, dims, strict=True):
        missing = operand.shape == (0,) or (dim is None and operand is operands[3])
        moved.append(operand if missing else operand[None] if dim is None else jnp.moveaxis(operand, dim, 0))
    return packed_gemm_p.bind(*moved, **parameters), [0]


batching.primitive_batchers[pack_p] = partial(batch_everything, pack_p)
batching.primitive_batchers[packed_gemm_p] = _batch_packed_gemm
for _primitive, _native in ((pack_p, _pack_native), (packed_gemm_p, _packed_gemm_native)):
    mlir.register_lowering(_primitive, mlir.lower_fun(_native, multiple_results=True), platform="cpu")
    mlir.register_lowering(_primitive, mlir.lower_fun(_refuse, multiple_results=True))
