"""Reproducers: the module that a pipeline failed on, with the command that fails."""

import shlex
import tempfile
from pathlib import Path


def describe_reproducer(text: str, pipeline: str, path: str | None) -> str:
    """Write a reproducer, and say where it is, or why there is none."""
    try:
        return f"a reproducer is in {write_reproducer(text, pipeline, path)}"
    except OSError as error:
        return f"no reproducer could be written to '{path}': {error.strerror}"


def write_reproducer(text: str, pipeline: str, path: str | None) -> str:
    """Write module and RUN line to a path, or to a new temporary file; returns where."""
    contents = f"// RUN: steelyard-opt -p {shlex.quote(pipeline)} %s\n{text.lstrip(chr(10))}"
    if path is not None:
        Path(path).write_text(contents)
        return path
    with tempfile.NamedTemporaryFile("w", prefix="steelyard-reproducer-", suffix=".mlir", delete=False) as file:
        file.write(contents)
    return file.name
