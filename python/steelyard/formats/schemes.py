"""How one copy of a tensor is quantized, as plain data.

One `Scheme` describes every recipe; a new format is a new value, not a new class. The dialect's `#scaled.scheme`
attribute, the reference and the kernels all read it from here.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from steelyard.errors import ConstraintError, shown

FP8_ELEMENTS = ("f8E4M3FN", "f8E5M2")
FP4_ELEMENTS = ("f4E2M1FN",)
ELEMENT_MAX = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0, "f4E2M1FN": 6.0}

# Family -> legal elements, blocks (rows x columns of the stored array) and scale type.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "tensor": (FP8_ELEMENTS, ("tensor",), "f32"),
    "row": (FP8_ELEMENTS, ("row",), "f32"),
    "block": (FP8_ELEMENTS, ("1x128", "128x128"), "f32"),
    "mx": (FP8_ELEMENTS, ("1x32", "32x1", "32x32"), "f8E8M0FNU"),
    "mxfp4": (FP4_ELEMENTS, ("1x32",), "f8E8M0FNU"),
    "nvfp4": (FP4_ELEMENTS, ("1x16", "16x16", "1x32"), "f8E4M3FN"),
}
_WITHOUT_SIZE = ("tensor", "row")
"""Blocks whose size is that of the tensor."""
_SIXTEENS = ("1x16", "16x16")
CHOICES: dict[str, tuple[str, ...]] = {
    "source": ("current", "delayed", "static", "divisor"),
    "rounding": ("nearest", "stochastic"),
    "rule": ("rceil", "floor", "ceil", "even"),
    "second_level": ("none", "tensor", "row"),
    "four_over_six": ("none", "mae", "mse"),
    "layout": ("compact", "turned", "gemm", "packed"),
}


@dataclass(frozen=True)
class Scheme:
    """How one copy of a tensor is quantized.

    Constraints:
    - scheme_c1: `element`, `block` and `scale` belong to one family
    - scheme_c2: each option has one of its listed values
    - scheme_c3: a delayed scale needs one scale for the whole tensor, a static one that or a second level per tensor,
      and a divisor a second level per tensor
    - scheme_c4: `power_of_two` and `epsilon` need f32 scales, and `epsilon` is finite and not negative
    - scheme_c5: stochastic rounding needs f4E2M1FN in 1x16 or 16x16 blocks
    - scheme_c6: the random Hadamard transform needs f4E2M1FN in 1x16 blocks
    - scheme_c7: a scale rule other than rceil needs f8E8M0FNU scales
    - scheme_c8: f4E2M1FN with f8E4M3FN scales, and nothing else, has a second level
    - scheme_c9: a second level per row needs 1x16 blocks, and excludes the transform and stochastic rounding
    - scheme_c10: four-over-six needs f4E2M1FN in 1x16 or 16x16 blocks, without the transform and stochastic rounding
    - scheme_c11: the `gemm` layout needs block scales, the `turned` one FP8 with f8E8M0FNU scales, the `packed` one
      f4E2M1FN
    - scheme_c13: a static scale or divisor excludes what only scales from the data have: `power_of_two`, `epsilon`,
      four-over-six, the transform and stochastic rounding
    """

    element: str
    """Element format: f8E4M3FN, f8E5M2 or f4E2M1FN; a custom scheme may name any type."""
    block: str
    """`tensor`, `row`, or rows x columns of the stored array that share a scale."""
    scale: str
    """Type of a scale: f32, f8E8M0FNU or f8E4M3FN."""
    source: str = "current"
    """`current`: the scale comes from the data; `delayed`: it is state, given to the quantize; `static`: what decoded
    values are multiplied by is given: the scale of FP8, the second level of FP4; `divisor`: the second level of FP4 is
    given as what they are divided by."""
    power_of_two: bool = False
    """Scales are rounded down to a power of two."""
    rounding: str = "nearest"
    """`nearest` (ties to even) or `stochastic`."""
    rht: bool = False
    """A random Hadamard transform runs along the reduction before quantizing."""
    rule: str = "rceil"
    """How an f8E8M0FNU scale is computed from the amax: rceil, floor, ceil or even."""
    second_level: str = "none"
    """A second, f32 scale above the block scales: per `tensor` or per `row`."""
    four_over_six: str = "none"
    """Each block also tries to map its amax to 4 instead of 6, and keeps the smaller error: `mae` or `mse`."""
    epsilon: float = 0.0
    """A lower bound of the amax."""
    layout: str = "compact"
    """`compact`; `turned`: the codes of a columnwise MX copy lie along the reduction; `gemm`: the same, with scales in
    the order that GPU GEMMs read; `packed`: codes and scales in the order that the CPU's GEMMs read."""
    custom: str = ""
    """The name of a user's quantizer. The other fields then only describe it."""

    def __post_init__(self):
        _check_types(self)
        if not self.custom:
            for check in _CHECKS:
                check(self)

    @cached_property
    def family(self) -> str:
        """`tensor`, `row`, `block`, `mx`, `mxfp4`, `nvfp4` or `custom`: what scales there are, and how they lie."""
        return "custom" if self.custom else _family(self)

    @cached_property
    def block_shape(self) -> tuple[int, int] | None:
        """Rows and columns of a block of the stored array; None for the whole tensor or a whole row."""
        if self.block in _WITHOUT_SIZE:
            return None
        rows, columns = self.block.split("x")
        return int(rows), int(columns)

    @property
    def block_sizes(self) -> tuple[int, int]:
        """Rows and columns of a block; an error if the scheme has no blocks."""
        if self.block_shape is None:
            raise ValueError("a scheme with one scale per tensor or row has no blocks")
        return self.block_shape

    @property
    def has_blocks(self) -> bool:
        """Whether scales are those of blocks, which have a size of their own."""
        return self.block_shape is not None

    @property
    def is_tiled(self) -> bool:
        """Whether blocks are square, so that the columnwise copy holds the same values as the rowwise one."""
        return self.block_shape is not None and self.block_shape[0] == self.block_shape[1]

    @property
    def is_transposable(self) -> bool:
        """Whether the codes of the other usage can be computed from these codes, without the source."""
        return not self.custom and (self.block == "tensor" or self.is_tiled)

    def is_readable_as(self, other: "Scheme") -> bool:
        """Whether what a rowwise copy of this scheme stores is also a rowwise copy of another.

        One byte per 16x16 or 32x32 tile is stored for each of its rows, as the scales of blocks are.
        """
        if self == other:
            return True
        is_repeated = self.is_tiled and self.family in ("mx", "nvfp4")
        return is_repeated and replace(self, block=f"1x{self.block_sizes[1]}") == other

    @property
    def is_static(self) -> bool:
        """Whether what values are decoded by is given, not measured: as a factor or as a divisor."""
        return self.source in ("static", "divisor")

    @property
    def element_max(self) -> float:
        """Largest finite value of the element format."""
        return ELEMENT_MAX[self.element]

    @property
    def largest_encoded(self) -> float:
        """The largest magnitude that is not saturated, after the encoding factor of a static scale."""
        return self.element_max * (ELEMENT_MAX["f8E4M3FN"] if self.family == "nvfp4" else 1.0)

    def options(self) -> dict[str, bool | float | str]:
        """The fields that differ from their defaults, beyond element, block and scale."""
        optional = fields(self)[3:]
        return {f.name: value for f in optional if (value := getattr(self, f.name)) != f.default}


def _require(holds: bool, constraint: str, message: str) -> None:
    if not holds:
        raise ConstraintError(constraint, message)


def _family(scheme: Scheme) -> str:
    for family, (elements, blocks, scale) in FAMILIES.items():
        if scheme.element in elements and scheme.block in blocks and scheme.scale == scale:
            return family
    known = "; ".join(f"{'|'.join(e)} in {'|'.join(b)} with {s}" for e, b, s in FAMILIES.values())
    raise ConstraintError(
        "scheme_c1",
        f"element, block and scale must be one of: {known}; got {scheme.element} in {scheme.block} with {scheme.scale}",
    )


def _check_types(scheme: Scheme) -> None:
    """Refuse fields of another kind, which the other checks could not compare."""
    for each in fields(scheme):
        found = getattr(scheme, each.name)
        holds, expected = isinstance(found, str), "a name"
        if each.type is bool:
            holds, expected = isinstance(found, bool), "a flag"
        elif each.type is float:
            holds, expected = isinstance(found, int | float) and not isinstance(found, bool), "a number"
        _require(holds, "scheme_c2", f"{each.name} must be {expected}, got {shown(found)}")


def _check_choices(scheme: Scheme) -> None:
    for name, values in CHOICES.items():
        found = getattr(scheme, name)
        _require(found in values, "scheme_c2", f"{name} must be one of {', '.join(values)}, got {found!r}")


def _check_scale(scheme: Scheme) -> None:
    is_whole = scheme.block == "tensor" or (scheme.is_static and scheme.second_level == "tensor")
    _require(
        scheme.source == "current" or is_whole,
        "scheme_c3",
        f"a {scheme.source} scale must be one for the whole tensor, got block {scheme.block}",
    )
    _require(
        scheme.source != "divisor" or scheme.second_level == "tensor",
        "scheme_c3",
        f"a divisor must be a second level per tensor, got {scheme.element} with {scheme.scale}",
    )
    plain = scheme.scale == "f32"
    _require(plain or not scheme.power_of_two, "scheme_c4", f"power_of_two needs f32 scales, got {scheme.scale}")
    _require(plain or scheme.epsilon == 0, "scheme_c4", f"epsilon needs f32 scales, got {scheme.scale}")
    _require(
        math.isfinite(scheme.epsilon) and scheme.epsilon >= 0,
        "scheme_c4",
        f"epsilon must be finite and not negative, got {scheme.epsilon}",
    )
    _require(
        scheme.rule == "rceil" or scheme.scale == "f8E8M0FNU",
        "scheme_c7",
        f"scale rule {scheme.rule} needs f8E8M0FNU scales, got {scheme.scale}",
    )
    _require(
        scheme.layout == "compact" or scheme.has_blocks,
        "scheme_c11",
        f"the gemm layout needs block scales, got block {scheme.block}",
    )
    _require(
        scheme.layout != "turned" or scheme.family == "mx",
        "scheme_c11",
        f"the turned layout needs FP8 with f8E8M0FNU scales, got {scheme.element} with {scheme.scale}",
    )
    _require(
        scheme.layout != "packed" or scheme.element == "f4E2M1FN",
        "scheme_c11",
        f"the packed layout needs f4E2M1FN, got {scheme.element}",
    )


def _check_fp4(scheme: Scheme) -> None:
    fp4 = scheme.element == "f4E2M1FN"
    stochastic = scheme.rounding == "stochastic"
    by_sixteen = fp4 and scheme.block in _SIXTEENS
    found = f"{scheme.element} in {scheme.block}"
    _require(
        by_sixteen or not stochastic,
        "scheme_c5",
        f"stochastic rounding needs f4E2M1FN in 1x16 or 16x16 blocks, got {found}",
    )
    _require(
        not scheme.rht or (fp4 and scheme.block == "1x16"),
        "scheme_c6",
        f"the random Hadamard transform needs f4E2M1FN in 1x16 blocks, got {found}",
    )
    _require(
        (fp4 and scheme.scale == "f8E4M3FN") == (scheme.second_level != "none"),
        "scheme_c8",
        "f4E2M1FN with f8E4M3FN scales, and nothing else, must have a second level, "
        f"got {scheme.second_level!r} for {scheme.element} with {scheme.scale}",
    )
    _require(
        scheme.second_level != "row" or (scheme.block == "1x16" and not scheme.rht and not stochastic),
        "scheme_c9",
        "a second level per row needs 1x16 blocks without the random Hadamard transform and stochastic rounding",
    )
    _require(
        scheme.four_over_six == "none" or (by_sixteen and not scheme.rht and not stochastic),
        "scheme_c10",
        "four-over-six needs f4E2M1FN in 1x16 or 16x16 blocks, without the random Hadamard transform and stochastic "
        f"rounding, got {found}",
    )


def _check_static(scheme: Scheme) -> None:
    if not scheme.is_static:
        return
    measured = ("power_of_two", "epsilon", "four_over_six", "rht", "rounding")
    chosen = [name for name in measured if name in scheme.options()]
    _require(
        not chosen, "scheme_c13", f"a {scheme.source} scale excludes {', '.join(measured)}, got {', '.join(chosen)}"
    )


_CHECKS = (_family, _check_choices, _check_scale, _check_fp4, _check_static)

CACHED = Scheme("f8E4M3FN", "row", "f32")
"""How a KV cache keeps keys and values: a row is what one head has of one token."""
CACHED_STATIC = Scheme("f8E4M3FN", "tensor", "f32", source="static")
"""How it keeps them where a scale is given for all that a layer caches."""
CACHED_ROLES = ("key", "value")
