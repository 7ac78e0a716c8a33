"""Emulated GEMMs and what follows a product, planned."""

from collections.abc import Mapping

from steelyard.codegen.epilogue import EpilogueKernel
from steelyard.codegen.launches.copies import decode
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.launches.values import Matrix, StoredCopy, Vector
from steelyard.codegen.sizes import Size, is_multiple
from steelyard.codegen.tile import ITEM_BYTES


def multiply_into(
    plan: PlanBuilder, lhs: StoredCopy | Matrix, rhs: StoredCopy, out: Buffer, batches: Size | None
) -> None:
    """The product of two copies, or of a matrix and a copy, decoded to float32; `batches` of them where the operands
    are batches."""
    left, right = (_widen(plan, lhs) if isinstance(lhs, Matrix) else decode(plan, lhs)), decode(plan, rhs)
    if batches is None:
        plan.call("product", left, right, out)
    else:
        plan.call("batched_product", left, right, out, batches)


def multiplied_rows(copy: StoredCopy) -> Size:
    """The rows of an operand of a product, which lie along the reduction."""
    return copy.shape[1] if copy.columnwise else copy.shape[0]


def _widen(plan: PlanBuilder, matrix: Matrix) -> Buffer:
    """A matrix in float32."""
    if matrix.dtype == "f32":
        return matrix.buffer
    out = plan.temporary(matrix.rows, matrix.columns)
    plan.call("copy", matrix.buffer, out)
    return out


def finish_product(
    plan: PlanBuilder,
    matrices: Mapping[str, Matrix],
    bias: Vector | None,
    outs: tuple[Matrix, ...],
    activation: str,
) -> None:
    """`activation(source + bias) + residual` of the matrices of these names.

    `outs`: the result and, where it is kept, what the activation is given.
    """
    out = outs[0]
    named: dict[str, Argument] = {"out": out.buffer, "rows": out.rows, "columns": out.columns}
    for name, matrix in matrices.items():
        named |= matrix.arguments(name, f"{name}_row_stride", f"{name}_column_stride")
    aligned = all(matrix.is_aligned for matrix in (*matrices.values(), *outs))
    dtypes = {"residual": matrices["residual"].dtype} if "residual" in matrices else {}
    if bias is not None:
        named |= {"bias": bias.buffer, "bias_stride": bias.stride}
        dtypes["bias"] = bias.dtype
        whole = is_multiple(out.columns, 16 // ITEM_BYTES[bias.dtype])
        aligned = aligned and whole and bias.stride == 1 and bias.begins_aligned
    if len(outs) > 1:
        named["preactivation"] = outs[1].buffer
    kernel = EpilogueKernel(out.dtype, activation, preactivation=len(outs) > 1, aligned=aligned, **dtypes)
    plan.launch(kernel, named, out.rows, out.columns)
