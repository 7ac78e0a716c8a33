"""The graphs that run in a call of a net, noted as they run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """A graph without gradients that ran on the CPU in a recorded call."""

    graph: Any
    arguments: tuple
    results: tuple


Note = Callable[[Any, tuple], tuple]
"""Runs a graph on its arguments, and takes note."""

Call = Callable[[Any, tuple, dict[str, Any]], Any]
"""Calls what torch captured of a module."""


class _Current(threading.local):
    note: Note | None = None
    call: Call | None = None


current = _Current()
"""What runs the graphs of this thread, and what calls captured modules; None where nobody takes note."""


@contextmanager
def noted_by(note: Note, call: Call) -> Iterator[None]:
    """A context in which these functions run the graphs of this thread, and call captured modules."""
    outer = current.note, current.call
    current.note, current.call = note, call
    try:
        yield
    finally:
        current.note, current.call = outer


@dataclass
class Recording:
    """What a call ran."""

    runs: list[Ran] = field(default_factory=list)
    has_breaks: bool = False
    """Whether Python ran between or before graphs, where it may read values."""


@contextmanager
def recorded_graphs() -> Iterator[Recording]:
    """A context whose runs of graphs in this thread are recorded."""
    found = Recording()

    def note(graph: Any, arguments: tuple) -> tuple:
        results = graph.run(arguments)
        found.runs.append(Ran(graph, arguments, results))
        return results

    def call(captured: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        result = captured.run(*arguments, **keywords)
        found.has_breaks |= captured.has_breaks()
        return result

    with noted_by(note, call):
        yield found
