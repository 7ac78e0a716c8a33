"""Diagnostics as data and as text: `file:line:column: error: message`, with the source line and a caret below."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.assembly.positions import Positions
from steelyard.dialect.assembly.reader import PARSED_FROM_MEMORY
from steelyard.dialect.assembly.spelling import shorten


@dataclass(frozen=True)
class Diagnostic:
    """One error, warning, remark or note; line 0 if no place is known."""

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    notes: tuple["Diagnostic", ...] = ()


def from_mlir(
    diagnostic: ir.DiagnosticInfo | ir.Diagnostic, source_name: str, positions: Positions | None = None
) -> Diagnostic:
    """One of MLIR's diagnostics, with its notes; `positions` are those of the text that is being parsed."""
    file, line, column = _place(diagnostic.location, source_name, positions)
    notes = tuple(from_mlir(note, source_name, positions) for note in diagnostic.notes)
    severity = str(diagnostic.severity).rpartition(".")[2].lower()
    return Diagnostic(severity, shorten(diagnostic.message), file, line, column, notes)


def format_diagnostic(diagnostic: Diagnostic, source_name: str, lines: list[str]) -> str:
    """A diagnostic as compilers print it."""
    place = diagnostic.file or source_name
    if diagnostic.line:
        place += f":{diagnostic.line}:{diagnostic.column}"
    text = [f"{place}: {diagnostic.severity}: {diagnostic.message}"]
    here = place.startswith(source_name) and 0 < diagnostic.line <= len(lines)
    if here and diagnostic.column:
        line = lines[diagnostic.line - 1]
        text += [line, _caret_indent(line, diagnostic.column) + "^"]
    text += [format_diagnostic(note, source_name, lines) for note in diagnostic.notes]
    return "\n".join(text)


def _caret_indent(line: str, column: int) -> str:
    # Columns count bytes, and tabs are kept, so that the caret is below its character.
    before = line.encode()[: column - 1].decode(errors="ignore")
    return "".join("\t" if character == "\t" else " " for character in before)


def _place(location: ir.Location, source_name: str, positions: Positions | None) -> tuple[str, int, int]:
    # A diagnostic's location comes back without its kind; going through its attribute restores it.
    for place in _file_places(ir.Location.from_attr(location.attr, location.context)):
        if place.filename != PARSED_FROM_MEMORY:
            return place.filename, place.start_line, place.start_col
        line, column = place.start_line, place.start_col
        if positions is not None:
            line, column = positions.to_source(line, column)
        return source_name, line, column
    return "", 0, 0


def _file_places(location: ir.Location) -> Iterator[ir.FileLineColLoc]:
    """The places in files that a location names, innermost first."""
    if isinstance(location, ir.FileLineColLoc):
        yield location
    elif isinstance(location, ir.NameLoc):
        yield from _file_places(location.child_loc)
    elif isinstance(location, ir.CallSiteLoc):
        yield from _file_places(location.callee)
    elif isinstance(location, ir.FusedLoc):
        for part in location.locations:
            yield from _file_places(part)
