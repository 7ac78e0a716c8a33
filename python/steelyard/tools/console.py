"""What commands have in common: standard output that may be closed or full, and how they print."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from steelyard.errors import FileError
from steelyard.files import failure


class Parser(argparse.ArgumentParser):
    """A parser whose help and version fail where they cannot be written; argparse would ignore it."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:
            show(message, end="")
        else:
            say(message, end="")


def show(text: str | bytes, end: str = "\n") -> None:
    """Print text, or write bytes, to standard output now; raises `FileError`."""
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; open it, or redirect it to a file or /dev/null")
    try:
        if isinstance(text, bytes):
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
        else:
            print(text, end=end, flush=True)
    except OSError as error:
        _drop_standard_output()
        raise failure("cannot write standard output", error) from error


def say(text: str, end: str = "\n") -> None:
    """Print to standard error; where it cannot be written, there is nowhere to say so."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, end=end, file=sys.stderr, flush=True)


def announce(step: str) -> None:
    """Print what takes a while, before it does."""
    show(f"{step} ...")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def indented(text: str) -> str:
    """A text two spaces to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())


def hold_closed_streams() -> None:
    """Open closed standard streams to nothing: a file opened later could take their place, and be written into."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _drop_standard_output() -> None:
    """Stop writing to a closed pipe or a full disk: Python would complain about it at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
