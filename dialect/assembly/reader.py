"""Text with the dialect in its short form -> text that MLIR parses.

Only what belongs to the dialect is translated: its ops, types and schemes. The rest is copied, and so is all that is
generic already, so that both forms mix freely. Every line stays where it is.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from torch_mlir import ir

from steelyard.dialect.assembly.formats import formats
from steelyard.dialect.assembly.op_reader import OpReader
from steelyard.dialect.assembly.positions import Chunk, Positions
from steelyard.dialect.assembly.scheme_names import full_by_name
from steelyard.dialect.assembly.spelling import expand_type, is_short_type
from steelyard.dialect.assembly.tokens import NAME, SIMPLE_TYPE, STRING, closing, skip_blank, token_at, type_end
from steelyard.errors import AssemblyError

_INTERESTING = re.compile(rf"{STRING}|//[^\n]*|scaled\.[A-Za-z_]\w*|\#{NAME}|!scaled\.tensor(?=[ \t\r\n]*<)", re.ASCII)
_BEHIND_ATTRIBUTE_NAME = ("=", ",", "}")


@dataclass(frozen=True)
class Translation:
    """A text in MLIR's own syntax, and how its places relate to the user's text."""

    source: str
    chunks: list[Chunk]
    has_moved: bool
    """Whether something behind a translated piece stands in another column than in the user's text."""

    @cached_property
    def text(self) -> str:
        """What MLIR parses."""
        return "".join([text for text, _, _ in self.chunks])

    @cached_property
    def positions(self) -> Positions:
        """Where places of the text come from."""
        return Positions(self.source, self.chunks)


def translate(text: str) -> Translation:
    """Translate a text; raises `AssemblyError`."""
    reader = _Reader(text)
    reader.run()
    return Translation(text, reader.chunks, reader.has_moved)


def parse_module(text: str, context: ir.Context) -> ir.Module:
    """The module of a text in the short form, the generic form, or both; raises `AssemblyError`."""
    translation = translate(text)
    try:
        module = ir.Module.parse(translation.text, context)
    except ir.MLIRError as error:
        raise _assembly_error(error, translation) from None
    relocate(module, translation)
    return module


def _assembly_error(error: ir.MLIRError, translation: Translation) -> AssemblyError:
    for diagnostic in error.error_diagnostics:
        place = ir.Location.from_attr(diagnostic.location.attr, diagnostic.location.context)
        if isinstance(place, ir.FileLineColLoc):
            return AssemblyError(
                diagnostic.message, *translation.positions.to_source(place.start_line, place.start_col)
            )
    return AssemblyError(str(error), 0, 0)


def relocate(module: ir.Module, translation: Translation) -> None:
    """Give what was parsed from a translation the user's columns."""
    if not translation.has_moved:
        return
    moved: dict[ir.Location, ir.Location] = {}

    def place(location: ir.Location) -> ir.Location:
        if location not in moved:
            moved[location] = _source_location(location, translation.positions)
        return moved[location]

    def visit(op: ir.Operation) -> ir.WalkResult:
        location = op.location
        found = place(location)
        if found is not location:
            op.location = found
        for region in op.regions:
            for block in region:
                for argument in block.arguments:
                    argument.set_location(place(argument.location))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _source_location(location: ir.Location, positions: Positions) -> ir.Location:
    known = ir.Location.from_attr(location.attr, location.context)
    if not isinstance(known, ir.FileLineColLoc) or known.filename != PARSED_FROM_MEMORY:
        return location
    place = positions.to_source(known.start_line, known.start_col)
    if place == (known.start_line, known.start_col):
        return location
    return ir.Location.file(PARSED_FROM_MEMORY, *place, context=location.context)


PARSED_FROM_MEMORY = "-"
"""The file name that the parser gives to a text it got from memory."""


class _Reader:
    """One pass over a text, from left to right."""

    def __init__(self, text: str):
        self.text = text
        self.chunks: list[Chunk] = []
        self.has_moved = False
        self._aliases: set[str] = set()
        self._types: dict[str, str] = {}
        self._schemes = full_by_name()
        self._formats = formats()
        self._copied = 0
        self._in_op = False

    def run(self) -> None:
        """Translate the whole text."""
        self._translate_until(len(self.text))

    def fail(self, message: str, position: int) -> AssemblyError:
        """An error at a position of the text."""
        return AssemblyError(message, *Positions(self.text, []).place(position))

    def span(self, start: int, end: int) -> list[Chunk]:
        """A part of an op, which holds types and attributes but no op."""
        outside, copied = self.chunks, self._copied
        self.chunks, self._copied, self._in_op = [], start, True
        self._translate_until(end)
        chunks, self.chunks, self._copied, self._in_op = self.chunks, outside, copied, False
        return chunks

    def type(self, start: int) -> tuple[list[Chunk], int]:
        """The type that starts here, and the position behind it, which is negative where there is no type."""
        simple = SIMPLE_TYPE.match(self.text, start)
        known = None if simple is None else self._types.get(simple.group())
        if simple is not None and known is not None:
            return [(known, start, False)], simple.end()
        end = type_end(self.text, start)
        if is_short_type(self.text, start):
            return [(self._expanded(start, end), start, False)], end
        if end < 0:
            return [], end
        return self.span(start, end), end

    def _translate_until(self, end: int) -> None:
        """Translate from what was copied last."""
        text, position = self.text, self._copied
        while (found := _INTERESTING.search(text, position, end)) is not None:
            start, position = found.span()
            first = text[start]
            if first == "#":
                self._scheme(found.group(), start, position)
            elif first == "!":
                position = self._type(start, position)
            elif first == "s" and not self._in_op and self._starts_op(start, position):
                position = self._op(found.group(), start, position)
        self._copy_until(end)

    def _copy_until(self, end: int) -> None:
        if end > self._copied:
            piece = self.text[self._copied : end]
            if not self.has_moved and self.chunks and not self.chunks[-1][2]:
                self.has_moved = not _ends_line(piece)
            self.chunks.append((piece, self._copied, True))
            self._copied = end

    def _replace(self, start: int, end: int, chunks: list[Chunk]) -> None:
        self._copy_until(start)
        self.chunks += chunks
        self._copied = end

    def _scheme(self, name: str, start: int, end: int) -> None:
        full = self._schemes.get(name)
        if full is None or name in self._aliases:
            return
        if token_at(self.text, end).text == "=":
            # The file's own alias, from here on.
            self._aliases.add(name)
            self._types.clear()
            return
        self._replace(start, end, [(full, start, False)])

    def _type(self, start: int, end: int) -> int:
        if not is_short_type(self.text, start):
            return end
        end = closing(self.text, skip_blank(self.text, end))
        self._replace(start, end, [(self._expanded(start, end), start, False)])
        return end

    def _expanded(self, start: int, end: int) -> str:
        """The quantized type between two positions, in full."""
        if end < 0:
            raise self.fail("expected '>' to close !scaled.tensor<", start)
        short = self.text[start:end]
        full = self._types.get(short)
        if full is None:
            full = expand_type(short, self._aliases)
            if full is None:
                wanted = "a shape with its element type, the scheme of the rowwise copy and that of the columnwise one"
                raise self.fail(f"expected {wanted}, got '{short}'", start)
            self._types[short] = full
        return full

    def _starts_op(self, start: int, end: int) -> bool:
        """Whether a word is the name of an op: not a part of another name, nor the name of an attribute."""
        if start and (self.text[start - 1].isalnum() or self.text[start - 1] in "_$.-%@^#!"):
            return False
        before = start - 1
        while before >= 0 and self.text[before] in " \t\r\n":
            before -= 1
        if before >= 0 and self.text[before] == "=":
            return True
        return token_at(self.text, end).text not in _BEHIND_ATTRIBUTE_NAME

    def _op(self, name: str, start: int, end: int) -> int:
        format_ = self._formats.get(name)
        if format_ is None:
            close = get_close_matches(name, self._formats, 1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; the ops are {', '.join(sorted(self._formats))}"
            raise self.fail(f"unknown op '{name}'{hint}", start)
        op = OpReader(self, format_, start, end)
        self._replace(start, op.end, op.chunks)
        return op.end


def _ends_line(text: str) -> bool:
    """Whether nothing that has a place of its own follows on the line."""
    rest = text.partition("\n")[0].strip(" (){},")
    return not rest or rest.startswith(("//", "loc("))
