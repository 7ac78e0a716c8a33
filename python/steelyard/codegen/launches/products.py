"""Emulated GEMMs and what follows a product, planned."""

from collections.abc import Mapping

from steelyard.codegen.epilogue import EpilogueKernel
from steelyard.codegen.launches.copies import decode
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder
from steelyard.codegen.launches.state import invert_scales
from steelyard.codegen.launches.values import Matrix, StoredCopy, Vector
from steelyard.codegen.scale_rules import nvfp4_range
from steelyard.codegen.sizes import Size, is_multiple
from steelyard.codegen.tile import ITEM_BYTES
from steelyard.targets.gemm_paths import emulated_dtype


def multiply_into(
    plan: PlanBuilder, lhs: StoredCopy | Matrix, rhs: StoredCopy, out: Buffer, batches: Size | None
) -> None:
    """The product of two copies, or of a matrix and a copy; `batches` of them where the operands are batches.

    Codes are decoded to bf16 where that is exact, with the scales of tensors and rows left for the sums, and to float32
    elsewhere.
    """
    left_format = lhs.dtype if isinstance(lhs, Matrix) else lhs.scheme
    if emulated_dtype(left_format, rhs.scheme, batched=batches is not None) == "bf16":
        _multiply_in_bf16(plan, lhs, rhs, out)
        return
    left, right = (widen(plan, lhs) if isinstance(lhs, Matrix) else decode(plan, lhs)), decode(plan, rhs)
    if batches is None:
        plan.call("product", left, right, out)
    else:
        plan.call("batched_product", left, right, out, batches)


def _multiply_in_bf16(plan: PlanBuilder, lhs: StoredCopy | Matrix, rhs: StoredCopy, out: Buffer) -> None:
    left = lhs.buffer if isinstance(lhs, Matrix) else decode(plan, lhs, "bf16", inner=True)
    right = decode(plan, rhs, "bf16", inner=True)
    scales = outer_scale(plan, lhs), outer_scale(plan, rhs)
    if scales == (None, None):
        plan.call("product", left, right, out)
        return
    # What stands in the place of a scale that there is none of is not read.
    (left_scale, left_range), (right_scale, right_range) = (scale or (left, 0) for scale in scales)
    plan.call("scaled_product", left, right, left_scale, left_range, right_scale, right_range, out)


def outer_scale(plan: PlanBuilder, operand: StoredCopy | Matrix) -> tuple[Buffer, int] | None:
    """What all values of a tensor or of each row are multiplied by, and what that is divided by."""
    if isinstance(operand, Matrix) or operand.scheme.scale == "f8E8M0FNU":
        return None
    if operand.amax is not None and operand.scheme.source == "divisor":
        inverse = plan.temporary()
        invert_scales(plan, operand.amax, inverse, 1)
        return inverse, 1
    if operand.amax is not None and operand.scheme.second_level != "none":
        return operand.amax, int(nvfp4_range(operand.scheme))
    return operand.scales, 1


def multiplied_rows(copy: StoredCopy) -> Size:
    """The rows of an operand of a product, which lie along the reduction."""
    return copy.shape[1] if copy.columnwise else copy.shape[0]


def widen(plan: PlanBuilder, matrix: Matrix) -> Buffer:
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
