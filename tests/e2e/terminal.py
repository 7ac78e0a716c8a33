"""A terminal for tests: what a person would see of the bytes that a program writes."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

import pytest

_TOKEN = re.compile(r"\033\[(\d*)([ABKC])|\033([78D])|(\r)|(\n)|([^\033])")


class Screen:
    """The rows of a screen of a given size, after the controls that VT100 terminals have in common."""

    def __init__(self, height: int = 24):
        self._rows: list[list[str]] = [[]]
        self._top, self._height = 0, height
        self._row = self._column = 0
        self._saved = 0, 0
        self.seen: list[str] = []
        """Every row that there was at a time when the cursor was put back, in order."""

    def feed(self, text: str) -> "Screen":
        """Write to the screen."""
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            assert found is not None, f"unknown control: {text[position : position + 10]!r}"
            position = found.end()
            count, control, single, home, newline, letter = found.groups()
            if control:
                self._control(control, int(count or 1))
            elif single:
                self._single(single)
            elif home:
                self._column = 0
            elif newline:
                self._down()
            else:
                self._put(letter)
        return self

    def _control(self, control: str, count: int) -> None:
        if control == "A":
            self._row = max(self._row - count, self._top)
        elif control == "B":
            self._row = min(self._row + count, self._top + self._height - 1)
            self._grow()
        elif control == "K":
            del self._rows[self._row][self._column :]

    def _single(self, control: str) -> None:
        if control == "7":
            self._saved = self._row - self._top, self._column
        elif control == "8":
            self.seen += self.rows
            self._row, self._column = self._top + self._saved[0], self._saved[1]
        else:
            self._down()

    def _down(self) -> None:
        self._row += 1
        self._top = max(self._top, self._row - self._height + 1)
        self._grow()

    def _grow(self) -> None:
        while len(self._rows) <= self._row:
            self._rows.append([])

    def _put(self, letter: str) -> None:
        row = self._rows[self._row]
        row += " " * (self._column + 1 - len(row))
        row[self._column] = letter
        self._column += 1

    @property
    def rows(self) -> list[str]:
        """What is on the screen, and what has scrolled off its top."""
        return [text for row in self._rows if (text := "".join(row).rstrip())]


class Terminal:
    """A terminal that is the standard error of this process."""

    def __init__(self):
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", buffering=1)

    def written(self) -> str:
        """All that was written to it."""
        self.stream.close()
        parts = []
        # A terminal that nobody writes to any more ends by an error.
        with contextlib.suppress(OSError):
            while part := os.read(self._master, 65536):
                parts.append(part)
        os.close(self._master)
        return b"".join(parts).decode()


@contextlib.contextmanager
def terminal(**variables: str) -> Iterator[Terminal]:
    """Standard error is a terminal, and no variable says otherwise but those given."""
    made = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_CURRENT_TEST", "CI", "STEELYARD_PROGRESS"):
            patch.delenv(name, raising=False)
        for name, value in ({"TERM": "xterm"} | variables).items():
            patch.setenv(name, value)
        patch.setattr(sys, "stderr", made.stream)
        yield made
