"""Emitted functions: their Python, which layers of the same code share, and the names of the layers they are for."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from steelyard.ir.renaming import Renaming
from steelyard.runtime.arena import Arenas
from steelyard.runtime.profiling import KERNELS, is_recording, kernel_names, with_records

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

    @functools.cached_property
    def _plain(self) -> CodeType:
        return self._compiled(self.lines)

    @functools.cached_property
    def _recorded(self) -> CodeType:
        return self._compiled([self.lines[0], *with_records(self.lines[1:])])

    def _compiled(self, lines: list[str]) -> CodeType:
        return compile(_source(lines), f"<steelyard {self.name}>", "exec")

    def run(self, layers: Sequence[str]) -> Callable[..., tuple]:
        """The function for some layers."""
        return self._function(self._plain, {LAYERS: layers})

    def recorded(self, layers: Sequence[str]) -> Callable[..., tuple]:
        """The function for some layers, with a record for torch's profiler around each kernel."""
        kernels = kernel_names(self.lines, layers)
        return self._function(self._recorded, {LAYERS: layers, KERNELS: kernels})

    def _function(self, code: CodeType, names: Mapping[str, Sequence[str]]) -> Callable[..., tuple]:
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

    @functools.cached_property
    def recorded(self) -> Callable[..., tuple]:
        """The function with a record for torch's profiler around each kernel."""
        return self.code.recorded(self.layers)

    def __call__(self, *arguments: Any) -> tuple:
        """Run it, and show its kernels to a profiler that records."""
        return (self.recorded if is_recording() else self.run)(*arguments)

    def bound_to(self, renaming: Renaming) -> "Emitted":
        """The same function for other layers."""
        layers = [renaming.layer(layer) for layer in self.layers]
        return Emitted(self.code, layers, self.code.run(layers) if self.code.names_layers else self.run)


def _source(lines: list[str]) -> str:
    return lines[0] + "\n" + "".join(f"    {line}\n" for line in lines[1:])
