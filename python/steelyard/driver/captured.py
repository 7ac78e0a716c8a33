"""A graph that torch captured, and the programs that run it.

After a graph break, torch keeps one graph for all modules with the same code, and passes it each module's parameters.
But layers have names, overrides and state of their own, so each set of parameters has its own program.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from steelyard.forks import make_lock
from steelyard.runtime.program import Program

_MOST_REMEMBERED = 256

Build = Callable[[Mapping[torch.fx.Node, str], Sequence[str | None]], Program]
"""Makes a program, given the layer of each node and the parameter of each argument."""


class CapturedGraph:
    """Calls the program of the given parameters; compiles it on first use."""

    def __init__(
        self,
        layers: Mapping[torch.fx.Node, str],
        parameters: Sequence[str | None],
        build: Build,
        names_by_id: Callable[[], Mapping[int, str]],
    ):
        self._layers = layers
        self._parameters = tuple(parameters)
        self._build = build
        self._names_by_id = names_by_id
        self._positions = [i for i, name in enumerate(parameters) if name is not None]
        self._programs = {self._parameters: build(layers, parameters)}
        self._remembered: dict[tuple[int, ...], tuple[weakref.ref, Program]] = {}
        self._lock = make_lock()

    def __call__(self, values: tuple[Any, ...]) -> tuple:
        """Run the program of these arguments."""
        return self.find(values)(*values)

    @property
    def first(self) -> Program:
        """The program of the parameters that the graph was captured with."""
        return self._programs[self._parameters]

    def find(self, values: Sequence[Any]) -> Program:
        """The program of these arguments; an argument that is None matches any parameter."""
        if not self._positions:
            return self.first
        key = tuple([id(values[i]) for i in self._positions])
        anchor = next((values[i] for i in self._positions if values[i] is not None), None)
        if anchor is None:
            return self.first
        parameter, program = self._remembered.get(key, (None, None))
        # The id of a parameter that was freed may have been reused.
        if program is None or parameter is None or parameter() is not anchor:
            program = self._find(values)
            self._remember(key, anchor, program)
        return program

    def remember(self, values: Sequence[Any], program: Program) -> None:
        """Let `find` answer by this program: for a backward, which may come when the net is no more."""
        anchor = next((values[i] for i in self._positions if values[i] is not None), None)
        if len(self._programs) > 1 and anchor is not None:
            self._remember(tuple([id(values[i]) for i in self._positions]), anchor, program)

    def _remember(self, key: tuple[int, ...], anchor: Any, program: Program) -> None:
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = weakref.ref(anchor), program

    def _find(self, values: Sequence[Any]) -> Program:
        known = self._names_by_id()
        names = tuple(
            None if name is None else known.get(id(value), name)
            for name, value in zip(self._parameters, values, strict=True)
        )
        if any(value is None for value in values):
            # A backward takes only some parameters; they identify the program of its forward.
            given = [i for i, value in enumerate(values) if value is not None]
            matching = [made for made in self._programs if all(made[i] == names[i] for i in given)]
            return self._programs[matching[0] if matching else self._parameters]
        with self._lock:
            if names not in self._programs:
                renames = _renamed_layers(self._parameters, names)
                layers = {node: _rename(layer, renames) for node, layer in self._layers.items()}
                self._programs[names] = self._build(layers, names)
            return self._programs[names]


def _renamed_layers(old: Sequence[str | None], new: Sequence[str | None]) -> dict[str, str]:
    """Old layer -> new layer, from the names of their parameters; the modules around them are renamed alike."""
    renames = {}
    for old_name, new_name in zip(old, new, strict=True):
        if old_name is None or new_name is None:
            continue
        left, right = old_name.split(".")[:-1], new_name.split(".")[:-1]
        renames[".".join(left)] = ".".join(right)
        while left and right and left[-1] == right[-1]:
            left, right = left[:-1], right[:-1]
            renames[".".join(left)] = ".".join(right)
    return renames


def _rename(layer: str, renames: Mapping[str, str]) -> str:
    """The new name of a layer, by the innermost renamed module around it."""
    parts = layer.split(".")
    for count in range(len(parts), 0, -1):
        new = renames.get(".".join(parts[:count]))
        if new is not None:
            return ".".join([new, *parts[count:]])
    return layer
