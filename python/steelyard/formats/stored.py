"""What a copy of a scheme stores: the shapes of its parts, and the bits that kernels know a scheme by.

Plain numbers, for every framework: nothing here imports torch.
"""

from functools import cache

from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

_FAMILIES = ("tensor", "block", "mx", "nvfp4")
_ELEMENTS = ("f8E4M3FN", "f8E5M2", "f4E2M1FN")
_RULES = ("rceil", "floor", "ceil", "even")
_ERRORS = ("none", "mae", "mse")


@cache
def scheme_bits(scheme: Scheme) -> int:
    """A scheme packed as `SchemeBits` of copy_arguments.h reads it."""
    if scheme.custom or scheme.layout != "compact":
        raise ConstraintError("quantize_scheme", f"the scheme must be a built-in one with compact scales, got {scheme}")
    fields = (
        (_FAMILIES.index(scheme.family), 0),
        (_ELEMENTS.index(scheme.element), 2),
        (_RULES.index(scheme.rule), 4),
        (_ERRORS.index(scheme.four_over_six), 6),
        (scheme.is_tiled, 8),
        (scheme.power_of_two, 9),
        (scheme.rht, 10),
        (scheme.rounding == "stochastic", 11),
        (scheme.second_level == "row", 12),
    )
    return sum(int(value) << shift for value, shift in fields)


def codes_shape(scheme: Scheme, stored: tuple[int, int]) -> tuple[int, int]:
    return (stored[0], -(-stored[1] // 2)) if scheme.element == "f4E2M1FN" else stored


def scales_shape(scheme: Scheme, stored: tuple[int, int], columnwise: bool) -> tuple[int, ...]:
    """Compact shape of the scales of a stored array."""
    rows, columns = stored
    if scheme.family == "tensor":
        return ()
    if scheme.family == "block":
        return -(-rows // scheme.block_sizes[0]), -(-columns // 128)
    if scheme.family == "mx":
        return (-(-rows // 32), columns) if columnwise else (rows, -(-columns // 32))
    return rows, -(-columns // 16)


def amax_shape(scheme: Scheme, stored: tuple[int, int]) -> tuple[int, ...] | None:
    if scheme.family in ("block", "mx"):
        return None
    return (stored[0],) if scheme.second_level == "row" else ()


def stored_shape(scheme: Scheme, shape: tuple[int, int], columnwise: bool) -> tuple[int, int]:
    rows, columns = shape[::-1] if columnwise and scheme.family != "mx" else shape
    return rows, round_up(columns, 16) if scheme.rht else columns


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
