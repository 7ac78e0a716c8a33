"""Modules as text with the dialect in its short form.

MLIR prints the module, the ops of Python-defined dialects generically; what belongs to this dialect is then
translated, token by token. An op that its format cannot spell, such as one with an attribute of another kind than it
declares, stays generic: the reader takes both.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from torch_mlir import ir

from steelyard.dialect.assembly.formats import OPERAND_KINDS, Format, Item, Kind, formats
from steelyard.dialect.assembly.spelling import shorten
from steelyard.dialect.assembly.tokens import NAME, STRING, closing, split_at_commas, type_end

_STRING_OR_SCALED = re.compile(rf"{STRING}|!scaled\.tensor<|#scaled\.scheme<")
_BARE = re.compile(r'"([A-Za-z_]\w*)"', re.ASCII)
_TYPED_NUMBER = re.compile(r"(-?[\w.+\-]+) : (i64|f64)", re.ASCII)
_INTEGERS = re.compile(r"array<i64(?:: ([\d, \-]+))?>")
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_SYMBOL = re.compile(rf"@(?:{NAME}|{STRING})", re.ASCII)
_KEY = re.compile(rf"{STRING}|[^ ]+")
_SIZES = re.compile(r"array<i32: ([\d, ]+)>")


def print_module(
    module: ir.Operation, *, debug_info: bool = False, local_scope: bool = False, generic: bool = False
) -> str:
    """The text of a module; `generic` is MLIR's own form of every op, type and attribute."""
    text = module.get_asm(enable_debug_info=debug_info, use_local_scope=local_scope, print_generic_op_form=generic)
    return text if generic else shorten_module(text)


def shorten_module(text: str) -> str:
    """A module as MLIR prints it -> the same module with the dialect in its short form."""
    pieces: list[str] = []
    lines: dict[str, _Line | None] = {}
    known = formats()
    position = copied = 0
    while (found := _STRING_OR_SCALED.search(text, position)) is not None:
        start, position = found.span()
        token = found.group()
        if token[0] != '"':
            position = closing(text, position - 1)
            assert position > 0, "MLIR closes every bracket that it prints"
            pieces += (text[copied:start], shorten(text[start:position]))
            copied = position
        elif token.startswith('"scaled.') and _is_op_name(text, start, position):
            format_ = known.get(token[1:-1])
            short = None if format_ is None else _short_op(text, position, format_, lines)
            if short is not None:
                pieces += (text[copied:start], short.text)
                copied = position = short.end
    pieces.append(text[copied:])
    return "".join(pieces)


def _is_op_name(text: str, start: int, end: int) -> bool:
    """Whether a string is the name of a generic op: MLIR puts it first on a line, or behind the results' `=`.

    The name of a location, the other string that a bracket may follow, stands behind a bracket, a comma or a word.
    """
    if not text.startswith("(", end):
        return False
    before = start - 1
    while before >= 0 and text[before] == " ":
        before -= 1
    return before < 0 or text[before] in "\n="


class _Line(NamedTuple):
    """What follows the operands of an op, in its short form: words between which the operands stand."""

    words: tuple[str, ...]
    operands: tuple[int, ...]


class _Short(NamedTuple):
    text: str
    end: int


def _short_op(text: str, position: int, format_: Format, lines: dict[str, _Line | None]) -> _Short | None:
    """The short form of the op whose operands start here; None where it has none.

    Ops of a program differ in little more than their operands, so what follows them is translated once.
    """
    operands_end = text.index(")", position)
    operands = text[position + 1 : operands_end].split(", ") if operands_end > position + 1 else []
    line_end = text.find("\n", operands_end)
    rest = text[operands_end + 1 : line_end if line_end >= 0 else len(text)]
    key = f"{format_.op_name}{len(operands)}{rest}"
    if key not in lines:
        lines[key] = _translate_line(format_, len(operands), rest)
    line = lines[key]
    if line is None:
        return None
    pieces = [line.words[0]]
    for index, word in zip(line.operands, line.words[1:], strict=True):
        pieces += (operands[index], word)
    return _Short("".join(pieces), operands_end + 1 + len(rest))


def _translate_line(format_: Format, operand_count: int, rest: str) -> _Line | None:
    attributes: dict[str, str] = {}
    end = 0
    if rest.startswith(" {"):
        end = closing(rest, 1)
        for entry in split_at_commas(rest[2 : end - 1]):
            name, value = _name_and_value(entry.strip())
            attributes[name] = value
    if not rest.startswith(" : (", end):
        return None
    # No text that MLIR prints holds a NUL: each stands around the number of an operand.
    words = _spell(format_, [f"\0{index}\0" for index in range(operand_count)], attributes)
    signature = _short_signature(rest[end:], format_)
    if words is None or signature is None:
        return None
    pieces = (words + signature).split("\0")
    return _Line(tuple(pieces[::2]), tuple(int(index) for index in pieces[1::2]))


def _name_and_value(entry: str) -> tuple[str, str]:
    """An entry of a dictionary; the value of a unit attribute is empty."""
    name = _KEY.match(entry)
    assert name is not None, f"MLIR printed the attribute {entry}"
    return name.group(), entry[name.end() :].removeprefix(" = ")


def _spell(format_: Format, operands: list[str], attributes: dict[str, str]) -> str | None:
    """What an op says before its types."""
    groups = _operand_groups(format_, operands, attributes)
    if groups is None:
        return None
    text = format_.op_name
    for item in format_.items:
        if item.kind in OPERAND_KINDS:
            value = ", ".join(groups[item.name])
            absent = item.is_optional and not groups[item.name]
        else:
            generic = attributes.pop(item.name, None)
            if generic is None:
                return None
            absent = item.is_optional and generic == item.default
            value = "" if absent else _short_value(item, generic)
            if value is None:
                return None
        if not absent:
            text += f"{item.lead}{value}{item.tail}" if item.kind is not Kind.FLAG else item.lead.rstrip()
    if attributes:
        entries = [f"{name} = {shorten(value)}" if value else name for name, value in attributes.items()]
        text += f" {{{', '.join(entries)}}}"
    return text


def _operand_groups(format_: Format, operands: list[str], attributes: dict[str, str]) -> dict[str, list[str]] | None:
    """Operands by name; None where the stored numbers of operands and results are not what the op declares."""
    sizes = [1] * len(format_.operands)
    if format_.has_operand_segments:
        sizes = _sizes(attributes.pop("operandSegmentSizes", ""))
    if len(sizes) != len(format_.operands) or sum(sizes) != len(operands):
        return None
    if format_.has_result_segments:
        there = _sizes(attributes.pop("resultSegmentSizes", ""))
        # The reader takes the first results to be there.
        if len(there) != len(format_.results) or there != sorted(there, reverse=True) or max(there) > 1:
            return None
    groups: dict[str, list[str]] = {}
    start = 0
    for operand, size in zip(format_.operands, sizes, strict=True):
        if not operand.fewest <= size <= operand.most:
            return None
        groups[operand.name] = operands[start : start + size]
        start += size
    return groups


def _sizes(generic: str) -> list[int]:
    found = _SIZES.fullmatch(generic)
    return [int(size) for size in found[1].split(", ")] if found else []


def _short_value(item: Item, generic: str) -> str | None:
    """An attribute as the format spells it; None for one of another kind than is declared."""
    match item.kind:
        case Kind.WORD:
            bare = _BARE.fullmatch(generic)
            return bare[1] if bare else _string(generic)
        case Kind.STRING:
            return _string(generic)
        case Kind.INTEGER | Kind.FLOAT:
            number = _TYPED_NUMBER.fullmatch(generic)
            wanted = "i64" if item.kind is Kind.INTEGER else "f64"
            return number[1] if number and number[2] == wanted else None
        case Kind.INTEGERS:
            integers = _INTEGERS.fullmatch(generic)
            return (integers[1] or "") if integers else None
        case Kind.SYMBOL:
            return generic if _SYMBOL.fullmatch(generic) else None
        case Kind.SIZE:
            number = _TYPED_NUMBER.fullmatch(generic)
            return number[1] if number and number[2] == "i64" else _string(generic)
        case Kind.ARGUMENTS:
            return _arguments(generic)
        case Kind.SCHEME:
            return shorten(generic) if generic.startswith("#scaled.scheme<") else None
        case _:
            return "" if generic == "true" else None


def _arguments(generic: str) -> str | None:
    """Integers and strings without the brackets around them."""
    if not generic.startswith("[") or not generic.endswith("]"):
        return None
    values = [value.strip() for value in split_at_commas(generic[1:-1])] if generic != "[]" else []
    fits = all(value.startswith('"') or _INTEGER.fullmatch(value) for value in values)
    return ", ".join(values) if fits else None


def _string(generic: str) -> str | None:
    return generic if generic.startswith('"') else None


@lru_cache(maxsize=4096)
def _short_signature(text: str, format_: Format) -> str | None:
    """` : (operand types) -> result types` without the brackets; what follows it, a location, is kept."""
    inputs_end = closing(text, len(" : "))
    inputs = text[len(" : (") : inputs_end - 1]
    if not text.startswith(" -> ", inputs_end):
        return None
    start = inputs_end + len(" -> ")
    if text.startswith("(", start):
        end = closing(text, start)
        # The brackets around several results, or around one that is a function.
        results = text[start + 1 : end - 1]
    else:
        end = type_end(text, start)
        results = text[start:end]
    count = len(split_at_commas(results)) if results else 0
    if end < 0 or not format_.fewest_results <= count <= len(format_.results):
        return None
    if not format_.has_signature:
        return shorten(text[end:]) if not inputs else None
    arrow = f" -> {shorten(results)}" if count else ""
    return f" : {shorten(inputs)}{arrow}{shorten(text[end:])}"
