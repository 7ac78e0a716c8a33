"""How the ops that passes make run under JAX's tracing: `scaled` ops by our primitives, the rest by `jax.lax`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.types import TensorType, scaled_info_of
from steelyard.errors import UnsupportedModelError
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.ir.stablehlo_ops import CONVERT, GROUP_ENDS, RESHAPE, TRANSPOSE, permutation_of
from steelyard.ir.torch_ops import defining_op
from steelyard.jax import explicit, packed, primitives, quantizers, random, stacked
from steelyard.jax.compiler import experts, measuring
from steelyard.jax.compiler.values import Copy, Packed, Quantized, Stacked, float_dtype, shape_of
from steelyard.jax.copies import CopySpec
from steelyard.jax.varying import largest_over

Rule = Callable[[ir.Operation, list[Any]], list[Any]]
_REDUCED = {"fprop": ((1,), (1,)), "dgrad": ((1,), (0,)), "wgrad": ((0,), (0,))}
"""The dims that a product of matrices reduces over, by its kind."""


def run_quantize(op: ir.Operation, operands: list[Any], *, in_place: bool) -> list[Any]:
    """Run a `scaled.quantize`; `in_place` reads the kernel [K, N] that it quantizes the transpose of where it lies."""
    view: Any = op.opview
    given = iter(operands[1:])
    scale, rng, ends = (None if getattr(view, name) is None else next(given) for name in ("scale", "rng", "ends"))
    info = scaled_info_of(view.result)
    if info.groups:
        made = experts.quantize(operands[0], info, ends, scale=scale, rng=rng, in_place=in_place)
        return [made] if view.new_amax is None else [made, made.amaxes]
    if in_place and _is_transpose(view.source) and not any(scheme.rht for scheme in info.schemes):
        # The copies of the transpose are the kernel's own, the other way round.
        row, col = (quantizers.flipped(scheme) for scheme in (info.col, info.row))
        made = quantize_matrix(operands[0].T, row, col, scale=scale, rng=rng)
        made = Quantized(made.columnwise, made.rowwise)
    else:
        made = quantize_matrix(operands[0], info.row, info.col, scale=scale, rng=rng)
    return [made] if view.new_amax is None else [made, made.amax]


def quantize_matrix(x: jax.Array, row: Any, col: Any, *, scale: Any, rng: Any) -> Quantized:
    """The copies of a matrix, or of a tensor with its dims before the last flattened."""
    matrix = explicit.reshaped(x, (-1, x.shape[-1]))
    rows, columns = matrix.shape
    made = primitives.quantize(matrix, row, col, scale=scale, rng=rng)
    copies = [
        None if parts is None else Copy(parts, CopySpec(scheme, columnwise, (rows, columns)))
        for parts, scheme, columnwise in zip(made, (row, col), (False, True), strict=True)
    ]
    return Quantized(*copies)


def _is_transpose(value: ir.Value) -> bool:
    maker = defining_op(value)
    return maker is not None and is_matrix_transpose(maker)


def _gemm(op: ir.Operation, operands: list[Any]) -> list[Any]:
    view: Any = op.opview
    lhs, rhs = operands
    usages, dtype = OPERAND_USAGES[view.kind.value], float_dtype(view.result.type)
    if isinstance(rhs, Stacked) and not isinstance(lhs, Quantized):
        rhs = rhs.taken()
    b = (rhs.whole if isinstance(rhs, Stacked) else rhs).copy_of(usages[1])
    if isinstance(rhs, Stacked):
        return [_stacked_gemm(lhs.copy_of(usages[0]), b, rhs.number, dtype).reshape(shape_of(view.result.type))]
    if isinstance(b, Packed):
        return [_packed_gemm(lhs, usages[0], b, dtype).reshape(shape_of(view.result.type))]
    if is_turned(op):
        a = lhs.copy_of(usages[0])
        return [primitives.gemm(b.parts, b.spec, a.parts, a.spec, out_dtype=dtype)]
    if isinstance(lhs, Quantized):
        a = lhs.copy_of(usages[0])
        out = primitives.gemm(a.parts, a.spec, b.parts, b.spec, out_dtype=dtype)
    else:
        # A recipe for weights alone: the weight is decoded.
        weight = primitives.dequantize(b.parts, b.spec, lhs.dtype)
        weight = weight if b.spec.columnwise == (usages[1] == "columnwise") else weight.T
        out = _product(lhs.reshape(-1, lhs.shape[-1]), weight, view.kind.value, dtype)
    return [explicit.reshaped(out, shape_of(view.result.type))]


def _stacked_gemm(a: Copy, b: Copy | Packed, number: jax.Array, dtype: Any) -> jax.Array:
    if isinstance(b, Packed):
        return stacked.packed_gemm(a.parts, a.spec, b.data, b.spec, number, out_dtype=dtype)
    return stacked.gemm(a.parts, a.spec, b.parts, b.spec, number, out_dtype=dtype)


def is_turned(op: ir.Operation | None) -> bool:
    """Whether an op is a product that is only read transposed: it is computed so, and nothing is copied."""
    view = None if op is None else op.opview
    if not isinstance(view, GemmOp) or view.kind.value != "wgrad" or not isinstance(view.lhs.type, TensorType):
        return False
    uses = list(view.result.uses)
    return len(uses) == 1 and is_matrix_transpose(uses[0].owner.operation)


def is_matrix_transpose(op: ir.Operation) -> bool:
    return op.name == TRANSPOSE and permutation_of(op) == [1, 0]


def _packed_gemm(lhs: Any, usage: str, weight: Packed, dtype: Any) -> jax.Array:
    if not isinstance(lhs, Quantized):
        raise UnsupportedModelError(
            "a recipe for weights alone has no packed weights in JAX; quantize activations, too"
        )
    a = lhs.copy_of(usage)
    return packed.packed_gemm(a.parts, a.spec, weight.data, weight.spec, out_dtype=dtype)


def _pack(op: ir.Operation, operands: list[Any]) -> list[Any]:
    """Pack the copies of a weight that this platform has a packed form for; JAX's products of experts read none."""
    if scaled_info_of(op.result).groups:
        return operands

    def made(copy: Any) -> Any:
        if copy is None or not packed.is_packed_by(copy.spec.scheme):
            return copy
        return Packed(packed.pack(copy.parts, copy.spec), copy.spec)

    (whole,) = operands
    return [Quantized(made(whole.rowwise), made(whole.columnwise))]


def _matmul(op: ir.Operation, operands: list[Any]) -> list[Any]:
    view: Any = op.opview
    lhs, rhs = operands
    return [_product(lhs, rhs, view.kind.value, float_dtype(view.result.type))]


def _product(lhs: jax.Array, rhs: jax.Array, kind: str, dtype: Any) -> jax.Array:
    return lax.dot_general(lhs, rhs, (_REDUCED[kind], ((), ())), preferred_element_type=dtype)


def _dequantize(op: ir.Operation, operands: list[Any]) -> list[Any]:
    view: Any = op.opview
    usage, type_ = view.usage.value, op.results[0].type
    copy = operands[0].copy_of(usage)
    values = primitives.dequantize(copy.parts, copy.spec, float_dtype(type_))
    values = values if copy.spec.columnwise == (usage == "columnwise") else values.T
    return [values.reshape(shape_of(type_))]


def _narrow(op: ir.Operation, operands: list[Any]) -> list[Any]:
    info = scaled_info_of(op.result)
    (whole,) = operands
    return [Quantized(whole.rowwise if info.row else None, whole.columnwise if info.col else None)]


def _update_scale(op: ir.Operation, operands: list[Any]) -> list[Any]:
    scale, history, amax = operands
    scheme = SchemeAttr(op.attributes["scheme"]).scheme
    margin = ir.IntegerAttr(op.attributes["margin"]).value
    algorithm = ir.StringAttr(op.attributes["algorithm"]).value

    def update(scale: jax.Array, history: jax.Array, amax: jax.Array) -> tuple[jax.Array, jax.Array]:
        return quantizers.update_scale(scale, history.at[0].set(amax), scheme, margin=margin, algorithm=algorithm)

    # The scales of the trips of a loop are a vector, and their histories columns.
    for _ in range(scale.ndim):
        update = jax.vmap(update, in_axes=(0, 1, 0), out_axes=(0, 1))
    return list(update(scale, history, largest_over(amax, scale)))


def _advance_rng(_: ir.Operation, operands: list[Any]) -> list[Any]:
    return [random.next_words(operands[0])]


def _maximum(_: ir.Operation, operands: list[Any]) -> list[Any]:
    return [jnp.maximum(*operands)]


def _transpose(op: ir.Operation, operands: list[Any]) -> list[Any]:
    return [lax.transpose(operands[0], permutation_of(op))]


def _reshape(op: ir.Operation, operands: list[Any]) -> list[Any]:
    return [explicit.reshaped(operands[0], shape_of(op.result.type))]


def _convert(op: ir.Operation, operands: list[Any]) -> list[Any]:
    return [lax.convert_element_type(operands[0], float_dtype(op.result.type))]


RULES: dict[str, Rule] = {
    "scaled.gemm": _gemm,
    "scaled.grouped_gemm": experts.run_gemm,
    "scaled.grouped_matmul": experts.run_matmul,
    GROUP_ENDS: experts.run_group_ends,
    "scaled.pack": _pack,
    "scaled.matmul": _matmul,
    "scaled.dequantize": _dequantize,
    "scaled.narrow": _narrow,
    "scaled.update_scale": _update_scale,
    "scaled.advance_rng": _advance_rng,
    "arith.maximumf": _maximum,
    TRANSPOSE: _transpose,
    RESHAPE: _reshape,
    CONVERT: _convert,
    "scaled.measure_quantize": measuring.run_measure_quantize,
    "scaled.measure_product": measuring.run_measure_product,
}
"""Op -> what runs it, if it is not an equation of the function."""
