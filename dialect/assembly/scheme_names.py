"""Names of schemes: `#mxfp8_1x32`, `#fp8_e5m2_tensor_delayed`, `#nvfp4_1x16_stochastic_rht`.

Every scheme without a lower bound of its amax and without a user's own quantizer has one. A name is the family, the
block, and the options that differ from what is usual in that family. All others are spelled out in full.
"""

from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

from steelyard.errors import ConstraintError
from steelyard.formats.schemes import CHOICES, FAMILIES, Scheme

_PREFIXES = {"tensor": "fp8", "row": "fp8", "block": "fp8", "mx": "mxfp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
_OPTIONS = {
    "tensor": ("source", "power_of_two"),
    "row": ("power_of_two",),
    "block": ("power_of_two", "layout"),
    "mx": ("rule", "layout"),
    "mxfp4": ("rule", "layout"),
    "nvfp4": ("source", "rounding", "rht", "second_level", "four_over_six", "layout"),
}
"""The options that schemes of a family can have."""
_FLAG = (False, True)
_USUAL = {"second_level": "tensor"}
"""What goes without saying, beside the defaults."""
_WORDS = {("second_level", "row"): "per_row"}


def name_of(scheme: Scheme) -> str | None:
    """The name of a scheme, without the `#`; None for one that has none."""
    if scheme.custom or scheme.epsilon:
        return None
    words = [_PREFIXES[scheme.family]]
    if scheme.element == "f8E5M2":
        words.append("e5m2")
    words.append(scheme.block)
    for option, value in scheme.options().items():
        if _USUAL.get(option) != value:
            words.append(_word(option, value))
    return "_".join(words)


def _word(option: str, value: bool | float | str) -> str:
    if value is True:
        return option
    if option == "four_over_six":
        return f"four_over_six_{value}"
    return _WORDS.get((option, str(value)), str(value))


@cache
def named_schemes() -> dict[str, Scheme]:
    """Every scheme that has a name, by its name."""
    named: dict[str, Scheme] = {}
    for family, (elements, blocks, scale) in FAMILIES.items():
        options = _OPTIONS[family]
        for element, block in product(elements, blocks):
            for values in product(*(CHOICES.get(option, _FLAG) for option in options)):
                chosen: dict[str, Any] = dict(zip(options, values, strict=True))
                # Some options exclude each other.
                with suppress(ConstraintError):
                    scheme = Scheme(element, block, scale, **chosen)
                    named[name_of(scheme) or ""] = scheme
    return named


def full_text(scheme: Scheme) -> str:
    """A scheme as MLIR prints it."""
    options = scheme.options()
    words = [option if options[option] is True else f'{option} = "{options[option]}"' for option in sorted(options)]
    return f'#scaled.scheme<{scheme.element}, "{scheme.block}", {scheme.scale}, {{{", ".join(words)}}}>'


@cache
def full_by_name() -> dict[str, str]:
    """`#name` -> the scheme spelled out."""
    return {f"#{name}": full_text(scheme) for name, scheme in named_schemes().items()}


@cache
def name_by_full() -> dict[str, str]:
    """A scheme spelled out -> `#name`."""
    return {full: name for name, full in full_by_name().items()}
