"""The graphs that run in a call of a net, noted as they run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """A graph without gradients that ran on the CPU in a recorded call."""

    graph: Any
    arguments: tuple
    results: tuple


Note = Callable[[Any, tuple], tuple]
"""Runs a graph on its arguments, and takes note."""


class _Current(threading.local):
    note: Note | None = None


current = _Current()
"""What runs the graphs of this thread; None where nobody takes note."""


@contextmanager
def noted_by(note: Note) -> Iterator[None]:
    """A context in which a function runs the graphs of this thread."""
    outer, current.note = current.note, note
    try:
        yield
    finally:
        current.note = outer


@contextmanager
def recorded_graphs() -> Iterator[list[Ran]]:
    """A context whose runs of graphs in this thread are noted in a list."""
    found: list[Ran] = []

    def note(graph: Any, arguments: tuple) -> tuple:
        results = graph.run(arguments)
        found.append(Ran(graph, arguments, results))
        return results

    with noted_by(note):
        yield found
