"""A table as text that is no wider than a page: long cells are wrapped, and columns that are empty are left out."""

from collections.abc import Sequence

PAGE = 116
"""120 columns, less an indent."""
_GAP = "  "
_NARROWEST = 8
_MORE_FOR_FIRST = 12
"""How much wider than the others the first column may be, which says what a row is about."""


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int = PAGE) -> list[str]:
    """The lines of a table with at most `width` columns, if its narrowest form is not wider."""
    kept = [i for i in range(len(heads)) if i == 0 or not rows or any(row[i] for row in rows)]
    cells = [[row[i] for i in kept] for row in (heads, *rows)]
    widths = _fit([max(len(row[i]) for row in cells) for i in range(len(kept))], [heads[i] for i in kept], width)
    lines = [line for row in cells for line in _lines(row, widths)]
    return [lines[0], "-" * min(width, max(map(len, lines))), *lines[1:]]


def _fit(widths: list[int], heads: Sequence[str], width: int) -> list[int]:
    """Take from the widest columns until the table fits."""
    least = [max(len(head), _NARROWEST) for head in heads]
    least[0] += _MORE_FOR_FIRST
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        spare = [given - needed for given, needed in zip(widths, least, strict=True)]
        if max(spare) <= 0:
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def _lines(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of one row."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    count = max(map(len, wrapped))
    return [
        _GAP.join(
            (part[i] if i < len(part) else "").ljust(width) for part, width in zip(wrapped, widths, strict=True)
        ).rstrip()
        for i in range(count)
    ]


def _wrap(text: str, width: int) -> list[str]:
    """A cell's lines, broken after a space, a dot or an underscore if there is one; all but the first are indented."""
    lines = []
    while len(text) > width:
        end = max(text.rfind(mark, 1, width) for mark in " .") + 1
        if end <= width // 2:
            end = text.rfind("_", 1, width) + 1 or width
        lines.append(text[:end].rstrip())
        text = " " + text[end:].lstrip()
    return [*lines, text]
