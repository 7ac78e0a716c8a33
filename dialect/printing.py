"""Modules as text in which each scheme is spelled once.

MLIR's printer has no aliases for attributes that are defined in Python, and a scheme stands in every type, so they are
added to its output: `#mxfp8_1x32 = #scaled.scheme<...>` above the module. The text parses to the same module.
"""

import re
from collections.abc import Mapping

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

# A string is matched first so that a scheme spelled inside one stays as it is.
_STRING_OR_SCHEME = re.compile(r'"(?:[^"\\]|\\.)*"|#scaled\.scheme<(?:"(?:[^"\\]|\\.)*"|[^<>"])*>')
_STRING_OR_ALIAS = re.compile(r'"(?:[^"\\]|\\.)*"|#\w+')
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


def nest_modules(texts: Mapping[str, str]) -> str:
    """One module of several, each by its name, from their texts as `print_module` gives them."""
    aliases: dict[str, str] = {}
    bodies = []
    for name, text in texts.items():
        lines = text.splitlines()
        count = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        renamed = {}
        for line in lines[:count]:
            alias, _, scheme = line.partition(" = ")
            if scheme not in aliases:
                aliases[scheme] = _free_name(alias, set(aliases.values()))
            renamed[alias] = aliases[scheme]
        body = "\n".join(f"  {line}" for line in lines[count:])
        body = _STRING_OR_ALIAS.sub(lambda found, renamed=renamed: renamed.get(found[0], found[0]), body)
        bodies.append(body.replace("module", f"module @{name}", 1))
    return "".join(f"{alias} = {scheme}\n" for scheme, alias in aliases.items()) + "\n".join(
        ["module {", *bodies, "}\n"]
    )


def _new_alias(text: str, taken: set[str], context: ir.Context) -> str:
    return _free_name(f"#{_alias_name(text, context)}", taken)


def _free_name(base: str, taken: set[str]) -> str:
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_v{number}", number + 1
    return name


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
