"""Reproducers: the module that a pipeline failed on, with the command that fails."""

import secrets
import shlex
import tempfile
from pathlib import Path

from steelyard.files import write_file


def describe_reproducer(text: str, pipeline: str, path: str | None) -> str:
    """Write a reproducer, and say where it is, or why there is none."""
    try:
        return f"a reproducer is in {write_reproducer(text, pipeline, path)}"
    except OSError as error:
        return f"no reproducer could be written: {error}"


def write_reproducer(text: str, pipeline: str, path: str | None) -> str:
    """Write module and RUN line to a path, or to a new temporary file; returns where."""
    contents = f"// RUN: steelyard-opt -p {shlex.quote(pipeline)} %s\n{text.lstrip(chr(10))}"
    if path is None:
        path = str(Path(tempfile.gettempdir(), f"steelyard-reproducer-{secrets.token_hex(4)}.mlir"))
    write_file(Path(path), contents.encode())
    return path
