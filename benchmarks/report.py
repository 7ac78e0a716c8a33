"""Tables of measurements, and timing."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Table:
    """Rows of cells under a title; a float prints with three significant digits."""

    title: str
    columns: list[str]
    rows: list[list[str | float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The table for a terminal."""
        cells = [self.columns, *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [_line(row, widths) for row in cells]
        return "\n".join([self.title, "-" * len(lines[0]), *lines, *self.notes])

    def data(self) -> dict:
        """The table for programs."""
        return {"title": self.title, "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]}


def _line(row: list[str], widths: list[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *padded[1:]])


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def median_seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of a few runs."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def progress(text: str) -> None:
    """Say what is being measured, on a line that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
