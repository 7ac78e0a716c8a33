"""Sources of tensors in groups, and their products, emulated: decoded and multiplied by torch; planned."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.launches.copies import dequantize_into
from steelyard.codegen.launches.groups import Groups, PartBytes
from steelyard.codegen.launches.plan import Argument, Buffer, PlanBuilder, Transposed
from steelyard.codegen.launches.products import outer_scale, widen
from steelyard.codegen.launches.sources import Filling
from steelyard.codegen.launches.values import Matrix, StoredCopy, Vector
from steelyard.codegen.sizes import Size, is_multiple, plus
from steelyard.codegen.tile import ITEM_BYTES
from steelyard.formats.parts import round_up
from steelyard.formats.schemes import Scheme
from steelyard.targets.gemm_paths import emulated_dtype, multiplies_groups_at_once

_TRANSFORMED = 16
"""What the random Hadamard transform fills the rows of each group up to."""


def needs_groups(scheme: Scheme, columnwise: bool, *, inner: bool = False) -> bool:
    """Whether the bytes of a copy depend on where groups begin: rows of others are blocks of their own.

    `inner`: of what is decoded without the scales that all values of a group share.
    """
    has_tiles = scheme.block_shape is not None and scheme.block_shape[0] > 1
    by_group = not inner and (scheme.family == "tensor" or scheme.second_level == "tensor")
    return columnwise or has_tiles or by_group or scheme.rounding == "stochastic"


def fill_groups(filling: Filling, rows: Size, groups: Groups, copies: Iterable[tuple[Scheme, bool]]) -> Filling:
    """The source of copies of a tensor in groups, each a scheme and whether it is columnwise: the source as it is where
    all rows are independent. `rows`: all of them, or those of one matrix of a stack."""
    if not any(needs_groups(scheme, columnwise) for scheme, columnwise in copies):
        return filling
    return replace(filling, rows=rows, named={**filling.named, "rows": rows}, groups=groups)


def multiply_groups_into(
    plan: PlanBuilder, lhs: StoredCopy | Matrix, rhs: StoredCopy, groups: tuple[int, Buffer], out: Vector
) -> None:
    """The products of all groups, of a number of them that end where a tensor says.

    A copy of a stack has the shape of one matrix. Rows lie along the reduction, as in `multiply_into`: the groups are
    rows of lhs, or where both are columnwise copies, of the reduction.
    """
    count, ends = groups
    reduces_rows = isinstance(lhs, StoredCopy) and lhs.columnwise
    rows, stack = Groups(count, ends), Groups(count)
    formats = lhs.dtype if isinstance(lhs, Matrix) else lhs.scheme, rhs.scheme
    # A divisor per group is part of the decoded values: there is no scale to multiply the sums by.
    divides = any(isinstance(each, Scheme) and each.source == "divisor" for each in formats)
    dtype = "f32" if divides else emulated_dtype(*formats)
    inner = dtype == "bf16"
    left = _plain(plan, lhs, dtype) if isinstance(lhs, Matrix) else _decode(plan, lhs, rows, dtype, inner)
    right = _decode(plan, rhs, rows if reduces_rows else stack, dtype, inner)
    multiple = _row_multiple(rhs) if reduces_rows else 1
    widths = [size for operand in (lhs, rhs) for size in _widths(operand)]
    at_once = not divides and multiplies_groups_at_once(*formats, out.dtype)
    if at_once and all(is_multiple(width, 8) for width in widths):
        plan.call("grouped_product", left, right, ends, multiple, out.buffer)
        return
    scales = [_scale_of(plan, operand, of) if inner else None for operand, of in ((lhs, rows), (rhs, stack))]
    # What stands in the place of a scale that there is none of is not read.
    arguments = [argument for scale in scales for argument in scale or (out.buffer, 0, 0)]
    plan.call("product_of_groups", left, right, ends, multiple, *arguments, out.buffer)


def _widths(operand: StoredCopy | Matrix) -> tuple[Size, ...]:
    """Sizes that torch's product of groups needs as multiples of 16 bytes: all but the number of rows in groups."""
    if isinstance(operand, Matrix):
        return (operand.columns,)
    return (operand.shape[1],)


def _plain(plan: PlanBuilder, matrix: Matrix, dtype: str) -> Buffer:
    return matrix.buffer if dtype == "bf16" else widen(plan, matrix)


def _row_multiple(copy: StoredCopy) -> int:
    return _TRANSFORMED if copy.scheme.rht and copy.columnwise else 1


def _decode(plan: PlanBuilder, copy: StoredCopy, groups: Groups, dtype: str, inner: bool) -> Buffer | Transposed:
    """The values of a copy in groups, its rows along the reduction; those of a transformed copy stay transformed."""
    multiple = _row_multiple(copy)
    read = replace(copy, scheme=replace(copy.scheme, rht=False)) if copy.columnwise else copy.as_stored()
    rows, columns = read.shape
    if groups.is_stack:
        rows = round_up(rows, multiple)  # pyright: ignore[reportArgumentType]
        read = replace(read, shape=(rows, columns))
        out = plan.temporary(groups.count, rows, columns, dtype=dtype)
    else:
        room = rows if multiple == 1 else plus(rows // multiple, groups.count) * multiple
        out = plan.temporary(room, columns, dtype=dtype)
    if needs_groups(replace(read.scheme, rounding="nearest"), read.columnwise, inner=inner):
        _dequantize_groups(plan, read, copy, groups, out, dtype, inner, multiple)
    else:
        whole = (rows * groups.count if groups.is_stack else rows), columns
        dequantize_into(plan, replace(read, shape=whole), Matrix.contiguous(out, dtype, *whole), inner=inner)
    return Transposed(out) if copy.columnwise else out


def _dequantize_groups(
    plan: PlanBuilder,
    read: StoredCopy,
    copy: StoredCopy,
    groups: Groups,
    out: Buffer,
    dtype: str,
    inner: bool,
    multiple: int,
) -> None:
    _, columns = read.shape
    # What was transformed consists of whole runs of 16, though it is read as if it were not.
    aligned = copy.spec(in_groups=not groups.is_stack).aligned and is_multiple(columns, 16)
    kernel = DequantizeKernel(replace(read.spec(), aligned=aligned), dtype, inner)
    named: dict[str, Argument] = {"codes": read.codes, "scales": read.scales, "out": out}
    named |= {"rows": read.shape[0], "columns": columns}
    if read.amax is not None:
        named["amax"] = read.amax
    own: dict[str, PartBytes] = {part: partial(read.part_bytes, part) for part in ("codes", "scales", "amax")}
    own["out"] = lambda rows: rows * columns * ITEM_BYTES[dtype]
    row_multiple = 1 if groups.is_stack else multiple
    groups.launch(plan, kernel, named, read.shape, own, row_multiple)


def _scale_of(plan: PlanBuilder, operand: StoredCopy | Matrix, groups: Groups) -> tuple[Buffer, int, Size] | None:
    """What sums are multiplied by, what that is divided by, and how many there are for each group: one, one for each of
    its lines, or with 0 one for each row of the groups."""
    found = outer_scale(plan, operand)
    if found is None or isinstance(operand, Matrix):
        return None
    scheme = operand.scheme
    per_line = scheme.family == "row" or scheme.second_level == "row"
    if not per_line:
        return *found, 1
    if operand.columnwise:
        return *found, operand.shape[1]
    return *found, operand.shape[0] if groups.is_stack else 0
