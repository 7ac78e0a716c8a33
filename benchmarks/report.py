"""Tables of measurements.

Every ratio is a speed: the time of the baseline divided by the time, so that above 1 is faster. The baseline is float32
in the same framework, on the same threads, unless the name of the column names another.
"""

import sys
from dataclasses import dataclass, field

SPEED = "speed"
"""Against float32, by the medians of the calls."""
SPEED_BEST = "speed, best"
"""Against float32, by the best calls."""


@dataclass
class Table:
    """Rows of cells under a title; a float prints with three significant digits.

    `labels` are the columns that name a row. `ratio` is the column that a chart draws, or empty for no chart.
    """

    title: str
    columns: list[str]
    rows: list[list[str | float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    ratio: str = ""

    def text(self) -> str:
        """The table for a terminal."""
        cells = [self.columns, *([cell_text(value) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [_line(row, widths) for row in cells]
        return "\n".join([self.title, "-" * len(lines[0]), *lines, *self.notes])

    def data(self) -> dict:
        """The table for programs."""
        return {
            "title": self.title,
            "labels": self.labels,
            "ratio": self.ratio,
            "notes": self.notes,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


def _line(row: list[str], widths: list[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *padded[1:]]).rstrip()


def cell_text(value: str | float) -> str:
    """A cell as it is printed."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def progress(text: str) -> None:
    """Say what is being measured; on a terminal, the next call overwrites the line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
