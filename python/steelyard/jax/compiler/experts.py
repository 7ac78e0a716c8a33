"""How the products of experts run under JAX's tracing: each group, and each expert, is a matrix of its own."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch_mlir import ir

from steelyard.dialect.types import ScaledInfo
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.jax import grouped_primitives, primitives
from steelyard.jax.compiler.values import Copy, Quantized, float_dtype
from steelyard.jax.copies import CopySpec
from steelyard.jax.quantizers import flipped

_OVER_ROWS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def run_group_ends(_: ir.Operation, operands: list[Any]) -> list[Any]:
    """Where groups of these sizes end."""
    return [jnp.cumsum(operands[0]).astype(jnp.int32)]


def _sizes(ends: jax.Array) -> jax.Array:
    return jnp.diff(ends, prepend=jnp.zeros_like(ends[:1]))


def quantize(x: jax.Array, info: ScaledInfo, ends: Any, *, scale: Any, rng: Any, in_place: bool) -> Quantized:
    """The copies of the rows of groups, or of the matrices of a stack."""
    if x.ndim == 2:
        made = grouped_primitives.quantize(x, _sizes(ends), info.row, info.col, scale=scale, rng=rng)
        return _copies(made, info.row, info.col, x.shape)
    scales = None if scale is None else scale.reshape(-1)
    if not in_place:
        made = primitives.quantize(x, info.row, info.col, scale=scales)
        return _copies(made, info.row, info.col, x.shape[1:])
    # The kernels [E, K, N] that this is the transpose of are read where they lie.
    kernels = jnp.swapaxes(x, 1, 2)
    row, col = flipped(info.col), flipped(info.row)
    made = _copies(primitives.quantize(kernels, row, col, scale=scales), row, col, kernels.shape[1:])
    return Quantized(made.columnwise, made.rowwise)


def _copies(made: Any, row: Any, col: Any, shape: Any) -> Quantized:
    copies = [
        None if parts is None else Copy(parts, CopySpec(scheme, columnwise, tuple(shape)))
        for parts, scheme, columnwise in zip(made, (row, col), (False, True), strict=True)
    ]
    return Quantized(*copies)


def run_gemm(op: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.grouped_gemm`."""
    view: Any = op.opview
    lhs, rhs, ends = operands
    kind, dtype, sizes = view.kind.value, float_dtype(view.result.type), _sizes(ends)
    usages = OPERAND_USAGES[kind]
    b = rhs.copy_of(usages[1])
    if not isinstance(lhs, Quantized):
        # A recipe for weights alone: the weights are decoded.
        weights = primitives.dequantize(b.parts, b.spec, lhs.dtype)
        is_own = b.spec.columnwise == (usages[1] == "columnwise")
        return [_product(kind, lhs, weights if is_own else jnp.swapaxes(weights, 1, 2), sizes, dtype)]
    a = lhs.copy_of(usages[0])
    both = kind == "wgrad"
    out = grouped_primitives.gemm(a.parts, a.spec, b.parts, b.spec, sizes, both=both, out_dtype=dtype)
    return [out]


def run_matmul(op: ir.Operation, operands: list[Any]) -> list[Any]:
    """Run a `scaled.grouped_matmul`, in high precision."""
    view: Any = op.opview
    lhs, rhs, ends = operands
    return [_product(view.kind.value, lhs, rhs, _sizes(ends), float_dtype(view.result.type))]


def _product(kind: str, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, dtype: Any) -> jax.Array:
    if kind == "wgrad":
        return lax.ragged_dot_general(lhs, rhs, sizes, _OVER_ROWS, preferred_element_type=dtype)
    kernels = jnp.swapaxes(rhs, 1, 2) if kind == "fprop" else rhs
    return lax.ragged_dot(lhs, kernels, sizes, preferred_element_type=dtype)
