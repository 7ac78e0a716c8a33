"""Dequantize, transposes and layouts of quantized copies, planned."""

from dataclasses import replace

from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.launches.plan import Argument, Buffer, Memory, PlanBuilder, Transposed
from steelyard.codegen.launches.values import Matrix, StoredCopy
from steelyard.codegen.scale_layouts import ScaleLayoutKernel
from steelyard.codegen.sizes import Size, is_multiple
from steelyard.codegen.transpose import TransposeKernel
from steelyard.errors import ConstraintError
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme


def part_memory(scheme: Scheme, shape: tuple[Size, Size], columnwise: bool) -> dict[str, Memory]:
    """What the parts of a copy take, by name."""
    parts = part_shapes(scheme, shape, columnwise)  # pyright: ignore[reportArgumentType]
    return {name: Memory(sizes, dtype) for name, (sizes, dtype) in parts.items()}  # pyright: ignore[reportArgumentType]


def dequantize_into(plan: PlanBuilder, copy: StoredCopy, out: Matrix, *, inner: bool = False) -> None:
    """The values of a copy as a logical matrix; the random Hadamard transform is undone.

    `inner`: without the scales that all values of a tensor or of a row share.
    """
    rows, columns = copy.shape
    spec = copy.spec()
    # Runs of 16 are stored whole.
    aligned = spec.aligned and is_multiple(columns, 16) and out.begins_aligned
    kernel = DequantizeKernel(replace(spec, aligned=aligned), out.dtype, inner)
    named: dict[str, Argument] = {"codes": copy.codes, "scales": copy.scales, "out": out.buffer}
    named |= {"rows": rows, "columns": columns}
    if copy.amax is not None:
        named["amax"] = copy.amax
    plan.launch(kernel, named, rows, columns)


def decode(plan: PlanBuilder, copy: StoredCopy, dtype: str = "f32", *, inner: bool = False) -> Buffer | Transposed:
    """The values of a copy, its rows along the reduction.

    Those of a copy with the Hadamard transform stay transformed, and none is left out: the rounding of what the
    transform put behind the last row is part of the product, as in a native GEMM.
    """
    # MX's columnwise copies are read by columns.
    is_turned = copy.columnwise and copy.scheme.family == "mx"
    read = copy if is_turned else copy.as_stored()
    out = plan.temporary(*read.shape, dtype=dtype)
    dequantize_into(plan, read, Matrix.contiguous(out, dtype, *read.shape), inner=inner)
    return Transposed(out) if is_turned else out


def transpose_into(plan: PlanBuilder, copy: StoredCopy, other: StoredCopy) -> None:
    """The copy of the other usage, from the codes."""
    scheme = copy.scheme
    if not scheme.is_transposable:
        raise ConstraintError(
            "transpose_scheme",
            "the other usage must follow from the codes: one scale for the tensor or square tiles, "
            f"got block {scheme.block}; quantize it from the source",
        )
    if copy.amax is not None and other.amax is not None:
        plan.call("copy", copy.amax, other.amax)
    if scheme.family == "tensor":
        plan.call("copy", copy.scales, other.scales)
    else:
        mx = "mx_to_rowwise" if copy.columnwise else "mx_to_columnwise"
        kind = {"block": "transpose_block", "nvfp4": "transpose_nvfp4", "mx": mx}[scheme.family]
        sizes = [_scales_shape(scheme, copy.shape, columnwise) for columnwise in (copy.columnwise, other.columnwise)]
        _move_scales(plan, kind, copy.scales, other.scales, *sizes)
    if scheme.family == "mx":
        plan.call("copy", copy.codes, other.codes)
        return
    aligned = copy.begins_aligned and other.begins_aligned
    turn_codes(plan, copy.codes, other.codes, *copy.stored_shape, nibbles=scheme.family == "nvfp4", aligned=aligned)


def turn_codes(
    plan: PlanBuilder,
    codes: Buffer,
    out: Buffer,
    rows: Size,
    columns: Size,
    *,
    nibbles: bool = False,
    aligned: bool = True,
) -> None:
    """The transpose of a matrix of codes; `aligned`: both begin at multiples of 16 bytes."""
    whole = is_multiple(rows, 16) and is_multiple(columns, 16)
    named: dict[str, Argument] = {"codes": codes, "out": out, "rows": rows, "columns": columns}
    plan.launch(TransposeKernel(nibbles, whole and aligned), named, rows, columns)


def swizzle_into(
    plan: PlanBuilder, scheme: Scheme, columnwise: bool, scales: Buffer, sizes: tuple[Size, Size], out: Buffer
) -> None:
    """Scales of these sizes in the layout that GPU GEMMs read, padded with zeros."""
    rows, columns = swizzled_shape(scheme, columnwise, sizes)
    if scheme.family == "block":
        kind = "pad_transposed" if scheme.block == "1x128" else "pad"
        _move_scales(plan, kind, scales, out, sizes, (rows, columns))
        return
    kind = "swizzle_transposed" if scheme.family == "mx" and columnwise else "swizzle"
    # Lines of whole tiles, 128 rows of scales each.
    _move_scales(plan, kind, scales, out, sizes, (rows // 128, columns * 128))


def swizzled_shape(scheme: Scheme, columnwise: bool, sizes: tuple[Size, Size]) -> tuple[Size, Size]:
    """The shape of scales in the layout that GPU GEMMs read."""
    if not scheme.has_blocks:
        raise ConstraintError(
            "swizzle_scheme",
            f"the gemm layout needs block scales, got block {scheme.block}; use the scales as they are",
        )
    turned = scheme.block == "1x128" or (scheme.family == "mx" and columnwise)
    rows, columns = sizes[::-1] if turned else sizes
    return rows if scheme.family == "block" else _round_up(rows, 128), _round_up(columns, 4)


def _round_up(size: Size, multiple: int) -> Size:
    return -(-size // multiple) * multiple


def _scales_shape(scheme: Scheme, shape: tuple[Size, Size], columnwise: bool) -> tuple[Size, Size]:
    rows, columns = part_memory(scheme, shape, columnwise)["scales"].shape
    return rows, columns


def _move_scales(
    plan: PlanBuilder,
    kind: str,
    scales: Buffer,
    out: Buffer,
    sizes: tuple[Size, Size],
    shape: tuple[Size, Size],
) -> None:
    named: dict[str, Argument] = {"scales": scales, "out": out, "rows": shape[0], "columns": shape[1]}
    named |= {"source_rows": sizes[0], "source_columns": sizes[1]}
    plan.launch(ScaleLayoutKernel(kind), named, *shape)
