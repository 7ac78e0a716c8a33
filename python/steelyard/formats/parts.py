"""What a quantized copy stores: its parts by name, and the shape of each.

The parts are `codes`, `scales` and, if the scheme has one, `amax`. A packed copy has one part, `packed`. A size that is
known only at run time is None. Nothing here imports torch, so that every framework can use it.
"""

import math
from typing import Literal, TypeVar, cast, get_args

from steelyard.formats.schemes import Scheme

Size = int | None
"""None if the size is known only at run time."""
AnySize = TypeVar("AnySize", int, Size)

Part = Literal["codes", "scales", "amax", "packed"]
PARTS: tuple[Part, ...] = get_args(Part)

CODES, BYTES, FLOATS = "i8", "i8", "f32"


def part_shapes(scheme: Scheme, shape: tuple[Size, Size], columnwise: bool) -> dict[Part, tuple[tuple[Size, ...], str]]:
    """Shape and element type of each part of a copy of a matrix, in the layout of its scheme."""
    stored = stored_shape(scheme, shape, columnwise)
    if scheme.layout == "packed":
        rows, columns = stored
        assert rows is not None
        assert columns is not None
        return {"packed": ((packed_size(scheme, rows, columns),), BYTES)}
    codes, scales = codes_shape(scheme, stored), scales_shape(scheme, stored, columnwise)
    if scheme.layout in ("turned", "gemm") and columnwise and scheme.family == "mx":
        codes = codes[::-1]
    if scheme.layout == "gemm":
        scales = gemm_scales_shape(scheme, scales, columnwise)
    parts: dict[Part, tuple[tuple[Size, ...], str]] = {
        "codes": (codes, CODES),
        "scales": (scales, FLOATS if scheme.scale == "f32" else BYTES),
    }
    amax = amax_shape(scheme, stored)
    if amax is not None:
        parts["amax"] = amax, FLOATS
    return parts


def grouped_part_shapes(
    scheme: Scheme, shape: tuple[Size, ...], columnwise: bool, groups: int
) -> dict[Part, tuple[tuple[Size, ...], str]]:
    """Shape and element type of each part of a copy in groups.

    Each group is a matrix of its own. A part holds those of all groups one after the other, flat. `shape` is a stack of
    equal matrices, or a matrix whose rows are in groups that only run time tells: then a part has room for the most
    that these groups can need.
    """
    if scheme.layout == "packed":
        return {"packed": ((_grouped_size(scheme, "packed", shape, columnwise, groups),), BYTES)}
    one_row = part_shapes(scheme, (1, shape[-1]), columnwise)
    return {
        part: ((_grouped_size(scheme, part, shape, columnwise, groups),), dtype) for part, (_, dtype) in one_row.items()
    }


def _grouped_size(scheme: Scheme, part: Part, shape: tuple[Size, ...], columnwise: bool, groups: int) -> Size:
    """Elements of one part of all groups together."""
    *_, rows, columns = shape

    def size_with(rows: Size) -> int:
        sizes, _ = part_shapes(scheme, (rows, columns), columnwise)[part]
        return math.prod(size or 0 for size in sizes)

    if len(shape) == 3:
        return groups * (round_up(size_with(rows), PACKED_ALIGNMENT) if part == "packed" else size_with(rows))
    unit, shared = size_with(1), shared_rows(scheme, part, columnwise)
    if not shared:
        return groups * unit
    if rows is None:
        return None
    # Each group may begin with a row that shares with none before it.
    first = min(rows, groups)
    return unit * (first + (rows - first) // shared)


def shared_rows(scheme: Scheme, part: Part, columnwise: bool) -> int:
    """How many rows of a matrix share what a part stores: a part of one row is as large as one of these many. 0 if it
    has the same size for any number of rows."""

    def size_with(rows: int) -> int:
        sizes, _ = part_shapes(scheme, (rows, 1), columnwise)[part]
        return math.prod(size or 0 for size in sizes)

    unit = size_with(1)
    return 0 if size_with(0) == unit else next(count for count in _SHARED_ROWS if size_with(count) == unit)


_SHARED_ROWS = (128, 32, 16, 2, 1)
PACKED_ALIGNMENT = 64
"""What the packed matrices of a stack begin at multiples of, in bytes."""


def part_names(scheme: Scheme) -> tuple[Part, ...]:
    """The parts that a copy consists of."""
    if scheme.layout == "packed":
        return ("packed",)
    return ("codes", "scales") if amax_shape(scheme, (0, 0)) is None else ("codes", "scales", "amax")


def is_stored_transposed(scheme: Scheme, columnwise: bool) -> bool:
    """Whether the stored array is the transpose of the matrix: every columnwise copy except MX."""
    return columnwise and scheme.family != "mx"


def stored_shape(scheme: Scheme, shape: tuple[AnySize, AnySize], columnwise: bool) -> tuple[AnySize, AnySize]:
    """Rows and columns of the stored array; the random Hadamard transform pads to whole groups of 16."""
    rows, columns = shape[::-1] if is_stored_transposed(scheme, columnwise) else shape
    return rows, round_up(columns, 16) if scheme.rht else columns


def codes_shape(scheme: Scheme, stored: tuple[AnySize, AnySize]) -> tuple[AnySize, AnySize]:
    """Shape of the codes of a stored array: two FP4 codes share a byte."""
    rows, columns = stored
    return (rows, ceil_div(columns, 2)) if scheme.element == "f4E2M1FN" else (rows, columns)


def scales_shape(scheme: Scheme, stored: tuple[AnySize, AnySize], columnwise: bool) -> tuple[AnySize, ...]:
    """Compact shape of the scales of a stored array."""
    rows, columns = stored
    if scheme.family == "tensor":
        return ()
    if scheme.family == "row":
        return rows, cast(AnySize, 1)
    if scheme.family == "block":
        return ceil_div(rows, scheme.block_sizes[0]), ceil_div(columns, 128)
    if scheme.family == "mx" and columnwise:
        return ceil_div(rows, 32), columns
    return rows, ceil_div(columns, scheme.block_sizes[1])


def amax_shape(scheme: Scheme, stored: tuple[AnySize, AnySize]) -> tuple[AnySize, ...] | None:
    """Shape of the amax of a stored array; None if the scheme keeps none."""
    if scheme.family not in ("tensor", "nvfp4"):
        return None
    return (stored[0],) if scheme.second_level == "row" else ()


def gemm_scales_shape(scheme: Scheme, compact: tuple[AnySize, ...], columnwise: bool) -> tuple[AnySize, ...]:
    """Shape of the scales in the order that GPU GEMMs read, from their compact shape."""
    if not scheme.has_blocks:
        return compact
    lines, groups = compact[::-1] if gemm_scales_are_transposed(scheme, columnwise) else compact
    if scheme.family == "block":
        return lines, round_up(groups, 4)
    return round_up(lines, 128), round_up(groups, 4)


def gemm_scales_are_transposed(scheme: Scheme, columnwise: bool) -> bool:
    """Whether GPU GEMMs read the transpose of the compact scales."""
    return scheme.block == "1x128" or (columnwise and scheme.family == "mx")


def can_pack(scheme: Scheme) -> bool:
    """Whether a copy has a packed form: FP4 in the compact layout."""
    return scheme.family in ("mxfp4", "nvfp4") and scheme.layout == "compact"


def packed_size(scheme: Scheme, rows: int, columns: int) -> int:
    """Bytes of a packed copy of a stored array: units of 8 rows by 16 columns, their scales, and on a line of their own
    the amaxes, or four numbers about scales that have none above them.
    """
    groups = ceil_div(rows, 8)
    codes, scales = 64 * groups * ceil_div(columns, 16), 8 * groups * ceil_div(columns, scheme.block_sizes[1])
    amax = amax_shape(scheme, (rows, columns))
    return round_up(codes + scales, 64) + 4 * (4 if amax is None else math.prod(amax))


def ceil_div(size: AnySize, divisor: int) -> AnySize:
    """`size / divisor`, rounded up."""
    return size if size is None else -(-size // divisor)


def round_up(size: AnySize, multiple: int) -> AnySize:
    """The next multiple."""
    return size if size is None else -(-size // multiple) * multiple
