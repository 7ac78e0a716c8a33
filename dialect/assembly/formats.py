"""The format string that each op declares, from which its printer, its reader and its line in the reference come.

    assembly_format = '$kind $lhs, $rhs [bias($bias)] [epilogue($epilogue = none)] [at $layer = ""]'

- `$name` is an operand or an attribute; `$name...` is any number of operands, of integers, or of integers and strings
- words and punctuation stand for themselves
- `[...]` is left out where its operand is absent, or where its attribute has the value behind the `=`; a lone word
  that is an attribute's name, as in `[per_row]`, is there where that attribute is true

What every op ends with is not declared: other attributes in braces, then ` : operand types -> result types`, where it
has any.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import Scaled, ScaledOp


class Kind(Enum):
    """How an operand or an attribute is spelled."""

    OPERAND = "operand"
    OPERANDS = "operands"
    WORD = "word"
    STRING = "string"
    INTEGER = "integer"
    INTEGERS = "integers"
    FLOAT = "float"
    SCHEME = "scheme"
    FLAG = "flag"
    SYMBOL = "symbol"
    SIZE = "size"
    ARGUMENTS = "arguments"


OPERAND_KINDS = (Kind.OPERAND, Kind.OPERANDS)


@dataclass(frozen=True)
class Item:
    """One operand or attribute, with the words and punctuation around it."""

    name: str
    kind: Kind
    before: tuple[str, ...]
    after: tuple[str, ...]
    is_optional: bool
    default: str | None
    """The attribute's generic text that goes without saying."""

    @cached_property
    def lead(self) -> str:
        """The text before the operand or attribute, as it is printed."""
        return _spaced(self.before)

    @cached_property
    def tail(self) -> str:
        """The text behind it."""
        return "".join(self.after)


@dataclass(frozen=True)
class Values:
    """An operand or a result: one value, one that may be absent, or any number."""

    name: str
    fewest: int
    most: int

    @property
    def can_vary(self) -> bool:
        return self.fewest != self.most


_NUMBERS = {"single": (1, 1), "optional": (0, 1), "variadic": (0, sys.maxsize)}


@dataclass(frozen=True, eq=False)
class Format:
    """The compiled format of an op."""

    op_name: str
    items: tuple[Item, ...]
    operands: tuple["Values", ...]
    """Operands in the op's order."""
    results: tuple["Values", ...]
    """Results in the op's order; those that may be absent come last."""

    @cached_property
    def has_operand_segments(self) -> bool:
        """Whether the op stores how many values each operand is."""
        return any(operand.can_vary for operand in self.operands)

    @cached_property
    def has_result_segments(self) -> bool:
        """Whether the op stores how many values each result is."""
        return any(result.can_vary for result in self.results)

    @cached_property
    def has_signature(self) -> bool:
        """Whether the op ends with the types of operands or results."""
        return bool(self.operands or self.results)

    @cached_property
    def fewest_results(self) -> int:
        """How many results are always there."""
        return sum(result.fewest for result in self.results)

    def syntax(self) -> str:
        """The op's syntax, as the reference shows it."""
        words = [self.op_name]
        for item in self.items:
            text = f"{item.lead}{_placeholder(item)}{item.tail}"
            words.append(f" [{text.strip()}]" if item.is_optional else text)
        arrow = " -> result types" if self.results else ""
        signature = f" : operand types{arrow}" if self.has_signature else ""
        return "".join(words) + f" [{{attributes}}]{signature}"


@cache
def formats() -> dict[str, Format]:
    """The format of every op of the dialect, by the op's name."""
    return {op.OPERATION_NAME: _compile(op) for op in Scaled.operations}


_PIECE = re.compile(
    r"""\$(?P<field>\w+)(?P<several>\.\.\.)?(?:\s*=\s*(?P<default>"[^"]*"|[\w.\-]+))?
    |(?P<open>\[)|(?P<close>\])|(?P<literal>[A-Za-z_]\w*|[(),])""",
    re.VERBOSE,
)
_VALUE_TYPES = {Kind.INTEGER: " : i64", Kind.FLOAT: " : f64"}


def _compile(op: type[ScaledOp]) -> Format:
    fields = {field.name: field for field in op._fields}
    items: list[Item] = []
    before: list[str] = []
    in_group = complete = False
    for piece in _PIECE.finditer(op.assembly_format):
        if piece["open"]:
            in_group, complete = True, False
        elif piece["close"]:
            if not complete:
                items.append(Item(before[-1], Kind.FLAG, tuple(before), (), True, "false"))
            before, in_group = [], False
        elif piece["literal"] == ")":
            items[-1] = _with_after(items[-1], piece["literal"])
        elif piece["literal"]:
            before.append(piece["literal"])
        else:
            items.append(_item(fields[piece["field"]], piece, before, in_group))
            before, complete = [], True
    _check(op, items, fields)
    return Format(op.OPERATION_NAME, tuple(items), _values(op, ext.OperandDef), _values(op, ext.ResultDef))


def _item(field: Any, piece: re.Match[str], before: list[str], in_group: bool) -> Item:
    several = piece["several"] is not None
    if isinstance(field, ext.OperandDef):
        kind, default = (Kind.OPERANDS if several else Kind.OPERAND), None
    else:
        kind = _array_kind(field) if several else _attribute_kind(field, piece["default"])
        default = _generic_default(kind, piece["default"])
    return Item(field.name, kind, tuple(before), (), in_group, default)


def _array_kind(field: Any) -> Kind:
    return Kind.ARGUMENTS if field.constraint is ir.ArrayAttr else Kind.INTEGERS


def _attribute_kind(field: Any, default: str | None) -> Kind:
    if field.constraint is ir.StringAttr:
        return Kind.STRING if default is not None and default.startswith('"') else Kind.WORD
    kinds = {
        ir.IntegerAttr: Kind.INTEGER,
        ir.FloatAttr: Kind.FLOAT,
        SchemeAttr: Kind.SCHEME,
        ir.FlatSymbolRefAttr: Kind.SYMBOL,
        Any: Kind.SIZE,
    }
    return kinds[field.constraint]


def _generic_default(kind: Kind, default: str | None) -> str | None:
    """The default as MLIR prints the attribute."""
    if default is None:
        return None
    if kind is Kind.WORD:
        return f'"{default}"'
    if kind is Kind.FLOAT:
        return f"{float(default):e} : f64"
    return default + _VALUE_TYPES.get(kind, "")


def _with_after(item: Item, literal: str) -> Item:
    return Item(item.name, item.kind, item.before, (*item.after, literal), item.is_optional, item.default)


def _values(op: type[ScaledOp], definition: type) -> tuple[Values, ...]:
    fields = [field for field in op._fields if isinstance(field, definition)]
    return tuple(Values(field.name, *_NUMBERS[field.variadicity.name]) for field in fields)


def _check(op: type[ScaledOp], items: Sequence[Item], fields: dict[str, Any]) -> None:
    declared = sorted(name for name, field in fields.items() if not isinstance(field, ext.ResultDef))
    spelled = sorted(item.name for item in items)
    if declared != spelled:
        raise TypeError(f"the format of {op.OPERATION_NAME} must spell {declared} once each, got {spelled}")


def _spaced(literals: Sequence[str]) -> str:
    """Words and punctuation with the blanks between them, up to what follows them."""
    text = ""
    for literal in literals:
        text += literal if literal in "()," else f" {literal}"
    return text if text.endswith("(") else f"{text} "


def _placeholder(item: Item) -> str:
    if item.kind is Kind.FLAG:
        return ""
    name = {
        Kind.OPERAND: f"%{item.name}",
        Kind.OPERANDS: f"%{item.name}, ...",
        Kind.STRING: f'"{item.name}"',
        Kind.SYMBOL: f"@{item.name}",
        Kind.INTEGERS: f"<{item.name}>, ...",
        Kind.ARGUMENTS: f"<{item.name}>, ...",
    }
    return name.get(item.kind, f"<{item.name}>")
