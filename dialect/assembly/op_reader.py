"""One op in its short form -> the op as MLIR parses it."""

import re
from collections.abc import Sequence
from typing import Protocol

from steelyard.dialect.assembly.formats import Format, Item, Kind
from steelyard.dialect.assembly.positions import Chunk
from steelyard.dialect.assembly.tokens import Token, closing, skip_blank, token_at
from steelyard.errors import AssemblyError

_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
_DESCRIPTIONS = {
    Kind.OPERAND: "a value",
    Kind.OPERANDS: "a value",
    Kind.WORD: "a word or a string",
    Kind.STRING: "a string",
    Kind.INTEGER: "an integer",
    Kind.INTEGERS: "an integer",
    Kind.FLOAT: "a number with a decimal point",
    Kind.SCHEME: "a scheme, as in #mxfp8_1x32",
    Kind.SYMBOL: "a symbol, as in @amax_f32",
    Kind.SIZE: "an integer or a string",
    Kind.ARGUMENTS: "an integer or a string",
}


class Surroundings(Protocol):
    """What an op needs of the text that it stands in."""

    text: str

    def fail(self, message: str, position: int) -> AssemblyError: ...
    def span(self, start: int, end: int) -> list[Chunk]: ...
    def type(self, start: int) -> tuple[list[Chunk], int]: ...


class OpReader:
    """Reads an op from behind its name: `chunks` is the op as MLIR parses it, `end` the position behind it."""

    def __init__(self, reader: Surroundings, format_: Format, start: int, end: int):
        self._reader, self._text, self._format = reader, reader.text, format_
        self._start, self.end = start, end
        self._token = token_at(self._text, end)
        self._operands: dict[str, list[Token]] = {}
        self._attributes: list[str] = []
        self._copied_attributes: list[list[Chunk]] = []
        self._skipped: list[str] = []
        for item in format_.items:
            self._read_item(item)
        self._read_dictionary()
        operands = [token for values in format_.operands for token in self._operands.get(values.name, ())]
        operand_types, result_types = self._read_signature(operands)
        self._add_segments(len(result_types))
        self.chunks = self._generic(operands, operand_types, result_types)

    def _advance(self, end: int) -> None:
        self.end = end
        self._token = token_at(self._text, end)

    def _expect(self, literal: str) -> None:
        token = self._token
        if token.text != literal:
            raise self._wrong(f"'{literal}'")
        self._skipped.clear()
        self._advance(token.end)

    def _wrong(self, wanted: str) -> AssemblyError:
        """An error that the token here is none of those that may come here."""
        before = ", ".join(f"'{word}'" for word in self._skipped)
        listed = f"{before} or {wanted}" if before else wanted
        message = f"expected {listed} in '{self._format.op_name}', got {self._token.describe()}"
        return self._reader.fail(message, self._token.start)

    def _read_item(self, item: Item) -> None:
        if item.is_optional and self._token.text != item.before[0]:
            self._skipped.append(item.before[0])
            if item.default is not None:
                self._attributes.append(f"{item.name} = {item.default}")
            return
        for literal in item.before:
            self._expect(literal)
        match item.kind:
            case Kind.OPERAND:
                self._operands[item.name] = [self._take(item, "value")]
            case Kind.OPERANDS:
                self._operands[item.name] = self._take_list(item, "value")
            case Kind.FLAG:
                self._attributes.append(f"{item.name} = true")
            case Kind.SCHEME:
                self._read_scheme(item)
            case _:
                self._attributes.append(f"{item.name} = {self._read_attribute(item)}")
        for literal in item.after:
            self._expect(literal)

    def _take(self, item: Item, *kinds: str) -> Token:
        token = self._token
        if token.kind not in kinds or (token.kind == "number" and not _fits(item, token.text)):
            raise self._wrong(f"{_DESCRIPTIONS[item.kind]} for '{item.name}'")
        self._skipped.clear()
        self._advance(token.end)
        return token

    def _take_list(self, item: Item, *kinds: str) -> list[Token]:
        """Any number of tokens with commas between them."""
        if item.after and self._token.text == item.after[0]:
            return []
        tokens = [self._take(item, *kinds)]
        while self._token.text == ",":
            self._expect(",")
            tokens.append(self._take(item, *kinds))
        return tokens

    def _read_attribute(self, item: Item) -> str:
        match item.kind:
            case Kind.WORD:
                token = self._take(item, "word", "string")
                return token.text if token.kind == "string" else f'"{token.text}"'
            case Kind.STRING:
                return self._take(item, "string").text
            case Kind.INTEGERS:
                integers = [token.text for token in self._take_list(item, "number")]
                return f"array<i64: {', '.join(integers)}>" if integers else "array<i64>"
            case Kind.ARGUMENTS:
                return f"[{', '.join(token.text for token in self._take_list(item, 'number', 'string'))}]"
            case Kind.SYMBOL:
                return self._take(item, "symbol").text
            case Kind.SIZE:
                token = self._take(item, "number", "string")
                return token.text if token.kind == "string" else f"{token.text} : i64"
            case Kind.INTEGER:
                return f"{self._take(item, 'number').text} : i64"
            case _:
                return f"{self._take(item, 'number').text} : f64"

    def _read_scheme(self, item: Item) -> None:
        token = self._take(item, "name")
        end = token.end
        if self._token.text == "<":
            end = closing(self._text, self._token.start)
            if end < 0:
                raise self._reader.fail(f"expected '>' to close {token.text}<", self._token.start)
            self._advance(end)
        scheme = self._reader.span(token.start, end)
        self._copied_attributes.append([(f"{item.name} = ", token.start, False), *scheme])

    def _read_dictionary(self) -> None:
        token = self._token
        if token.text != "{":
            self._skipped.append("{")
            return
        end = closing(self._text, token.start)
        if end < 0:
            raise self._reader.fail("expected '}' to close the attributes", token.start)
        if skip_blank(self._text, token.end) < end - 1:
            self._copied_attributes.append(self._reader.span(token.end, end - 1))
        self._skipped.clear()
        self._advance(end)

    def _read_signature(self, operands: Sequence[Token]) -> tuple[list[list[Chunk]], list[list[Chunk]]]:
        if not self._format.has_signature:
            return [], []
        self._expect(":")
        start = self._token.start
        operand_types = self._read_types()
        if len(operand_types) != len(operands):
            wanted = f"{len(operands)} operand types ({', '.join(token.text for token in operands)})"
            found = f"got {len(operand_types)}"
            raise self._reader.fail(f"expected {wanted} in '{self._format.op_name}', {found}", start)
        if not self._format.results:
            return operand_types, []
        self._expect("->")
        start = self._token.start
        result_types = self._read_types()
        if not self._format.fewest_results <= len(result_types) <= len(self._format.results):
            names = ", ".join(result.name for result in self._format.results)
            message = f"expected the types of the results ({names}) in '{self._format.op_name}'"
            raise self._reader.fail(f"{message}, got {len(result_types)} types", start)
        return operand_types, result_types

    def _read_types(self) -> list[list[Chunk]]:
        types = [self._read_type()]
        while self._token.text == ",":
            self._expect(",")
            types.append(self._read_type())
        return types

    def _read_type(self) -> list[Chunk]:
        type_, end = self._reader.type(self._token.start)
        if end < 0:
            raise self._wrong("a type")
        self._advance(end)
        return type_

    def _add_segments(self, result_count: int) -> None:
        if self._format.has_operand_segments:
            sizes = [str(len(self._operands.get(values.name, ()))) for values in self._format.operands]
            self._attributes.append(f"operandSegmentSizes = array<i32: {', '.join(sizes)}>")
        if self._format.has_result_segments:
            there = ["1" if index < result_count else "0" for index in range(len(self._format.results))]
            self._attributes.append(f"resultSegmentSizes = array<i32: {', '.join(there)}>")

    def _generic(
        self, operands: Sequence[Token], operand_types: Sequence[list[Chunk]], result_types: Sequence[list[Chunk]]
    ) -> list[Chunk]:
        start = self._start
        chunks: list[Chunk] = [(f'"{self._format.op_name}"(', start, False)]
        self._add_list(chunks, [[(operand.text, operand.start, False)] for operand in operands])
        if self._attributes or self._copied_attributes:
            made = [[(", ".join(self._attributes), start, False)]] if self._attributes else []
            chunks.append((") {", start, False))
            # The user's own come last: they may end in a comment, and a new line.
            self._add_list(chunks, made + self._copied_attributes)
            chunks.append(("} : (", start, False))
        else:
            chunks.append((") : (", start, False))
        self._add_list(chunks, operand_types)
        chunks.append((") -> (", start, False))
        self._add_list(chunks, result_types)
        chunks.append((")", start, False))
        # Lines stay where they are, whatever number of them the op was written on.
        lines = self._text.count("\n", start, self.end)
        if lines:
            chunks.append(("\n" * (lines - sum(text.count("\n") for text, _, _ in chunks)), self.end, False))
        return chunks

    def _add_list(self, chunks: list[Chunk], parts: Sequence[list[Chunk]]) -> None:
        for index, part in enumerate(parts):
            if index:
                chunks.append((", ", self._start, False))
            chunks += part


def _fits(item: Item, number: str) -> bool:
    """Whether a number is an integer, or has a decimal point, as the attribute needs; bits of a float are both."""
    is_integer = _INTEGER.fullmatch(number) is not None
    return is_integer if item.kind is not Kind.FLOAT else not is_integer or number.startswith("0x")
