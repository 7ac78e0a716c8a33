"""What a net is tracing and compiling, on one line of the terminal while it takes longer than a moment.

The line is drawn below the cursor, which stays where it was: what others write, a bar of theirs included, is never on
the same line. It is erased when the work is done, when it fails, and before anybody else writes.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from steelyard import knobs
from steelyard.forks import make_lock

_DELAY = 2.0
"""Seconds from the first work of a call to the first line."""
_INTERVAL = 0.2
"""Seconds between two lines."""

_SAVE, _RESTORE, _BELOW, _ERASE = "\0337", "\0338", "\033[B\r", "\033[K"
# At the bottom of the screen, a line is made below the cursor; its column stays.
_MAKE_ROOM = "\033D\033[A"

Text = Callable[[], str]
"""Says what is being done. It is called by another thread, when a line is drawn."""


class _Thread(threading.local):
    depth = 0
    """How many calls and pieces of work this thread is in."""


class Line:
    """The line of one call: of its pieces of work it shows the innermost one."""

    def __init__(self, terminal: Any):
        self._terminal = terminal
        self._descriptor: int = terminal.fileno()
        self._start = time.monotonic()
        self._lock = make_lock(is_reentrant=True)
        """Held while the terminal is written. Reentrant: a signal handler may print while it is held."""
        self._ended = threading.Event()
        self._is_drawn = False
        self._watched = contextlib.ExitStack()
        """Gives the streams their own `write` back."""
        self.thread = threading.get_ident()
        self.works: list[Text] = []
        self.step = ""
        """Where the innermost work is."""

    def start(self) -> None:
        """Draw from now on."""
        # Without a thread, as when Python exits, there is no line.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._redraw, name="steelyard-progress", daemon=True).start()

    def _redraw(self) -> None:
        pause = _DELAY
        while not self._ended.wait(pause):
            pause = _INTERVAL
            with self._lock, contextlib.suppress(OSError, ValueError):
                works = tuple(self.works)
                if works and not self._ended.is_set():
                    self._draw(works[-1]())

    def _draw(self, text: str) -> None:
        step = f", {self.step}" if self.step else ""
        line = f"steelyard: {text}{step} ... {int(time.monotonic() - self._start)} s"
        printable = "".join(letter if letter.isprintable() else "?" for letter in line)
        # In the last column, a terminal would begin a new line.
        printable = printable[: (os.get_terminal_size(self._descriptor).columns or 80) - 1]
        self._watch()
        self._is_drawn = True
        self._write(f"{_MAKE_ROOM}{_SAVE}{_BELOW}{printable}{_ERASE}{_RESTORE}")

    def _erase(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_drawn:
                self._is_drawn = False
                self._write(f"{_SAVE}{_BELOW}{_ERASE}{_RESTORE}")

    def rest(self) -> None:
        """Erase the line, and leave the terminal to others until there is more work."""
        with self._lock:
            self._erase()
            self._watched.close()

    def end(self) -> None:
        """Erase the line for good."""
        self._ended.set()
        self.rest()

    def leave(self) -> None:
        """Leave the line as it is, to another process."""
        self._ended.set()
        self._is_drawn = False
        self._watched.close()

    def _write(self, text: str) -> None:
        # Not by the stream: its buffer has a lock of its own, which a thread must not hold when Python exits.
        os.write(self._descriptor, text.encode(errors="replace"))

    def _watch(self) -> None:
        """Erase the line before anybody writes to the terminal: loggers keep the stream, so it is the same object."""
        for stream in (self._terminal, sys.stdout):
            # One that has a `write` of its own, or no place for one, is this line's already, or not one of Python's.
            if _is_terminal(stream) and "write" not in getattr(stream, "__dict__", "write"):
                stream.write = self._erasing(stream.write)
                self._watched.callback(delattr, stream, "write")

    def _erasing(self, write: Callable[[str], int]) -> Callable[[str], int]:
        def erase_and_write(text: str) -> int:
            with self._lock:
                self._erase()
                return write(text)

        return erase_and_write


_own = _Thread()
_lock = make_lock()
_line: Line | None = None
"""The line of the one call that shows its progress."""
_is_possible = True
"""False in forked processes: the terminal is their parent's."""


@contextlib.contextmanager
def call() -> Iterator[None]:
    """A call that may compile: all its pieces of work count from the first of them."""
    global _line
    outer = _own.depth
    try:
        _own.depth = outer + 1
        yield
    finally:
        _own.depth = outer
        line = _line
        if outer == 0 and line is not None and line.thread == threading.get_ident():
            _line = None
            line.end()


@contextlib.contextmanager
def doing(text: Text) -> Iterator[None]:
    """A piece of work. If another thread shows its progress, this one does not."""
    with call():
        line = _find_line()
        if line is None:
            yield
            return
        outer, outer_step = len(line.works), line.step
        try:
            line.works.append(text)
            line.step = ""
            yield
        finally:
            del line.works[outer:]
            line.step = outer_step
            if not line.works:
                line.rest()


def step(name: str) -> None:
    """Say where the present piece of work is."""
    line = _line
    if line is not None and line.works and line.thread == threading.get_ident():
        line.step = name


def _find_line() -> Line | None:
    """The line of this thread's call."""
    global _line
    with _lock:
        if _line is not None:
            return _line if _line.thread == threading.get_ident() else None
        if not _is_possible or not knobs.progress() or not _is_terminal(sys.stderr) or _is_another_rank():
            return None
        _line = Line(sys.stderr)
        _line.start()
        return _line


def _is_terminal(stream: Any) -> bool:
    # A stream may be missing or closed, and a replacement of it need not have a descriptor.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.isatty(stream.fileno()) and stream.isatty()
    return False


def _is_another_rank() -> bool:
    """Whether another process of a distributed run shows what all of them do."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0


def _leave_to_parent() -> None:
    global _line, _is_possible
    if _line is not None:
        _line.leave()
    _line, _is_possible = None, False


os.register_at_fork(after_in_child=_leave_to_parent)
