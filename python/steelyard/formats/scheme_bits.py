"""A scheme as the bits that are passed to native kernels."""

from functools import cache

from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

_FAMILIES = ("tensor", "row", "block", "mx", "mxfp4", "nvfp4")
_ELEMENTS = ("f8E4M3FN", "f8E5M2", "f4E2M1FN")
_RULES = ("rceil", "floor", "ceil", "even")
_ERRORS = ("none", "mae", "mse")


@cache
def scheme_bits(scheme: Scheme) -> int:
    """A scheme packed as `SchemeBits` in runtime/cpu/formats/scheme.h reads it."""
    if scheme.custom or scheme.layout != "compact":
        raise ConstraintError("quantize_scheme", f"the scheme must be a built-in one with compact scales, got {scheme}")
    fields = (
        (_FAMILIES.index(scheme.family), 0),
        (_ELEMENTS.index(scheme.element), 3),
        (_RULES.index(scheme.rule), 5),
        (_ERRORS.index(scheme.four_over_six), 7),
        (scheme.is_tiled, 9),
        (scheme.power_of_two, 10),
        (scheme.rht, 11),
        (scheme.rounding == "stochastic", 12),
        (scheme.second_level == "row", 13),
        (scheme.block == "1x32" and scheme.family == "nvfp4", 14),
        (scheme.is_static, 17),
        (scheme.source == "divisor", 18),
    )
    return sum(int(value) << shift for value, shift in fields)
