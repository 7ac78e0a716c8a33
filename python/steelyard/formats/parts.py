"""The tensors that hold a quantized copy, by name: `codes`, `scales` and, where the scheme has one, `amax`.

A packed copy is one tensor, `packed`.
"""

from steelyard.formats.schemes import Scheme

Size = int | None
"""None where a size is known only at run time."""

CODES, BYTES, FLOATS = "i8", "i8", "f32"


def part_shapes(scheme: Scheme, shape: tuple[Size, Size], columnwise: bool) -> dict[str, tuple[tuple[Size, ...], str]]:
    """Shape and element type of each part of a copy of a matrix."""
    rows, columns = stored_shape(scheme, shape, columnwise)
    turned = scheme.layout in ("turned", "gemm") and columnwise and scheme.family == "mx"
    if scheme.layout == "packed":
        assert rows is not None
        assert columns is not None
        return {"packed": ((packed_size(rows, columns, scheme.second_level == "row"),), BYTES)}
    packed = scheme.element == "f4E2M1FN"
    codes = (columns, rows) if turned else (rows, _ceil_div(columns, 2) if packed else columns)
    parts: dict[str, tuple[tuple[Size, ...], str]] = {
        "codes": (codes, CODES),
        "scales": (_laid_out_scales(scheme, rows, columns, columnwise), FLOATS if scheme.scale == "f32" else BYTES),
    }
    if scheme.family in ("tensor", "nvfp4"):
        parts["amax"] = ((rows,) if scheme.second_level == "row" else (), FLOATS)
    return parts


def stored_shape(scheme: Scheme, shape: tuple[Size, Size], columnwise: bool) -> tuple[Size, Size]:
    """Rows and columns of the stored array: transposed for a columnwise copy, but for MX."""
    rows, columns = shape[::-1] if columnwise and scheme.family != "mx" else shape
    return rows, _round_up(columns, 16) if scheme.rht else columns


def packed_size(rows: int, columns: int, row_scaled: bool) -> int:
    """Bytes of a packed copy: units of 8 rows by 16 columns, their scales, and the amaxes on a line of their own."""
    units = -(-rows // 8) * -(-columns // 16)
    codes_and_scales = units * (64 + 8)
    return -(-codes_and_scales // 64) * 64 + 4 * (rows if row_scaled else 1)


def _laid_out_scales(scheme: Scheme, rows: Size, columns: Size, columnwise: bool) -> tuple[Size, ...]:
    """Scales in the layout of a scheme."""
    shape = _scales_shape(scheme, rows, columns, columnwise)
    if scheme.layout != "gemm":
        return shape
    lines, groups = shape[::-1] if scheme.block == "1x128" or (columnwise and scheme.family == "mx") else shape
    if scheme.family == "block":
        return lines, _round_up(groups, 4)
    return _round_up(lines, 128), _round_up(groups, 4)


def _scales_shape(scheme: Scheme, rows: Size, columns: Size, columnwise: bool) -> tuple[Size, ...]:
    if scheme.family == "tensor":
        return ()
    if scheme.family == "block":
        return _ceil_div(rows, scheme.block_sizes[0]), _ceil_div(columns, 128)
    if scheme.family == "mx":
        return (_ceil_div(rows, 32), columns) if columnwise else (rows, _ceil_div(columns, 32))
    return rows, _ceil_div(columns, 16)


def _ceil_div(size: Size, block: int) -> Size:
    return None if size is None else -(-size // block)


def _round_up(size: Size, multiple: int) -> Size:
    return None if size is None else -(-size // multiple) * multiple
