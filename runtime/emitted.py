"""Emitted functions: their Python, which layers of the same code share, and the names of the layers they are for."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch.autograd import profiler

from steelyard.ir.renaming import Renaming
from steelyard.runtime.arena import Arenas
from steelyard.runtime.entry import Entry
from steelyard.runtime.profiling import (
    KERNELS,
    RECORD,
    CallLine,
    CallName,
    KernelLine,
    Record,
    Stopwatch,
    call_names,
    is_recording,
    stopwatch,
    stopwatches,
    with_records,
)

LAYERS = "layers"
"""What functions that name layers have by this name: the names, by their numbers."""


@dataclass(frozen=True)
class Code:
    """What a function does, in Python, and the memory that it works in: the same for all layers it is bound to."""

    name: str
    lines: list[str]
    """The first is the head of the function, the others are its body."""
    namespace: dict[str, Any]
    names_layers: bool
    """Whether the lines name layers."""
    tapes: list[str]
    """The text of each tape that the lines run."""
    entry: Entry | None
    """How another program runs it as a step; None if it is more than one tape."""

    @functools.cached_property
    def _plain(self) -> CodeType:
        return self._compiled(self.lines)

    @functools.cached_property
    def _recorded(self) -> CodeType:
        return self._compiled([self.lines[0], *with_records(self.lines[1:], KernelLine)])

    @functools.cached_property
    def _timed(self) -> CodeType:
        return self._compiled([self.lines[0], *with_records(self.lines[1:], CallLine)])

    def _compiled(self, lines: list[str]) -> CodeType:
        return compile(_source(lines), f"<steelyard {self.name}>", "exec")

    def run(self, layers: Sequence[str]) -> Callable[..., tuple]:
        """The function for some layers."""
        return self._function(self._plain, {LAYERS: layers})

    def recorded(self, layers: Sequence[str]) -> Callable[..., tuple]:
        """The function for some layers, with a record for torch's profiler around each kernel."""
        kernels = call_names(self.lines, layers, KernelLine)
        return self._function(self._recorded, {LAYERS: layers, KERNELS: kernels, RECORD: Record})

    def timed(self, layers: Sequence[str], watch: Stopwatch) -> Callable[..., tuple]:
        """The function for some layers, whose calls a stopwatch times, those of torch's ops too."""
        names = call_names(self.lines, layers, CallLine)
        return self._function(self._timed, {LAYERS: layers, KERNELS: names, RECORD: watch.record})

    def _function(self, code: CodeType, names: Mapping[str, Any]) -> Callable[..., tuple]:
        namespace = {**self.namespace, **names}
        exec(code, namespace)
        return namespace[self.name]


@dataclass(frozen=True)
class Emitted:
    """A function for some layers."""

    code: Code
    layers: Sequence[str]
    """The names of the layers whose kernels it calls."""
    run: Callable[..., tuple]

    @property
    def text(self) -> str:
        """Its source."""
        names = f"{LAYERS} = {self.layers!r}\n\n\n" if self.code.names_layers else ""
        return names + _source(self.code.lines)

    @property
    def arenas(self) -> Arenas:
        """The memory that it works in."""
        return self.code.namespace["arenas"]

    @property
    def torch_calls(self) -> list[CallName]:
        """The ops of torch's that it calls, in their order."""
        lines = [line for line in self.code.lines if isinstance(line, CallLine) and not isinstance(line, KernelLine)]
        return call_names(lines, self.layers, CallLine)

    @functools.cached_property
    def recorded(self) -> Callable[..., tuple]:
        """The function with a record for torch's profiler around each kernel."""
        return self.code.recorded(self.layers)

    def __call__(self, *arguments: Any) -> tuple:
        """Run it, and show its kernels to a profiler that records."""
        if not profiler._is_profiler_enabled and not stopwatches:
            return self.run(*arguments)
        if is_recording():
            return self.recorded(*arguments)
        watch = stopwatch()
        return (self.run if watch is None else self.code.timed(self.layers, watch))(*arguments)

    def bound_to(self, renaming: Renaming) -> "Emitted":
        """The same function for other layers."""
        layers = [renaming.layer(layer) if layer else "" for layer in self.layers]
        return Emitted(self.code, layers, self.code.run(layers) if self.code.names_layers else self.run)


def _source(lines: list[str]) -> str:
    return lines[0] + "\n" + "".join(f"    {line}\n" for line in lines[1:])
