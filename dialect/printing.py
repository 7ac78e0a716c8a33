"""Modules as text in which each scheme is spelled once.

MLIR's printer has no aliases for attributes that are defined in Python, and a scheme stands in every type, so they are
added to its output: `#mxfp8_1x32 = #scaled.scheme<...>` above the module. The text parses to the same module.
"""

import re

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.errors import ConstraintError
from steelyard.schemes import Scheme

# A string is matched first so that a scheme spelled inside one stays as it is.
_STRING_OR_SCHEME = re.compile(r'"(?:[^"\\]|\\.)*"|#scaled\.scheme<(?:"(?:[^"\\]|\\.)*"|[^<>"])*>')
_FAMILY_PREFIX = {"tensor": "fp8", "block": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}


def print_module(module: ir.Operation, *, debug_info: bool = False) -> str:
    """The text of a module, its schemes as aliases."""
    text = module.get_asm(enable_debug_info=debug_info)
    aliases: dict[str, str] = {}

    def to_alias(match: re.Match[str]) -> str:
        found = match.group()
        if not found.startswith("#"):
            return found
        if found not in aliases:
            aliases[found] = _new_alias(found, set(aliases.values()), module.context)
        return aliases[found]

    body = _STRING_OR_SCHEME.sub(to_alias, text)
    return "".join(f"{alias} = {scheme}\n" for scheme, alias in aliases.items()) + body


def _new_alias(text: str, taken: set[str], context: ir.Context) -> str:
    base = _alias_name(text, context)
    name, number = base, 2
    while f"#{name}" in taken:
        name, number = f"{base}_v{number}", number + 1
    return f"#{name}"


def _alias_name(text: str, context: ir.Context) -> str:
    """`mxfp8_1x32`, `fp8_e5m2_tensor_delayed`, `nvfp4_1x16_rht`: what a reader would call the scheme."""
    attribute = ir.Attribute.parse(text, context)
    assert isinstance(attribute, SchemeAttr)
    try:
        scheme = attribute.scheme
    except ConstraintError:
        return "scheme"
    words = [*_format_words(scheme), scheme.block]
    defaults = {"second_level": "tensor"} if scheme.family == "nvfp4" else {}
    for name, value in scheme.options().items():
        if defaults.get(name) != value and name != "custom":
            words.append(name if value is True else f"{name}_{value}" if isinstance(value, float) else str(value))
    return re.sub(r"\W+", "_", "_".join(words))


def _format_words(scheme: Scheme) -> list[str]:
    if scheme.custom:
        return [re.sub(r"^(?=\d)", "_", scheme.custom)]
    prefix = _FAMILY_PREFIX[scheme.family]
    return [prefix, "e5m2"] if scheme.element == "f8E5M2" else [prefix]
