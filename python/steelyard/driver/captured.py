"""A graph that torch captured, and the programs that run it.

Torch keeps one graph for all modules with the same code, and passes it each module's parameters. But layers have names,
overrides and state of their own, so each set of parameters has its own program. Only the first is compiled: the others
are the same code, bound to other names. A layer that is quantized in another way, or whose parameters are stored in
another format, is compiled on its own.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from steelyard.driver import progress
from steelyard.driver.compilation import Compilation
from steelyard.driver.compile_lock import compile_lock
from steelyard.driver.quantized_inputs import stored_schemes
from steelyard.driver.recording import current
from steelyard.frontend.graph_variants import Layout, Sizes
from steelyard.ir.renaming import Renaming
from steelyard.ir.stored import StoredSchemes
from steelyard.runtime.entry import Entry
from steelyard.runtime.program import Program, SettledCall

_MOST_REMEMBERED = 256
_MOST_VARIANTS = 16

Parameters = tuple[str | None, ...]
Stored = tuple[StoredSchemes, ...]
Build = Callable[..., Compilation]
"""Compiles a graph, given the layer of each node, the parameter of each argument, and how it is stored. One without
gradients also as a variant: without the results that are `unread`, by number, and for arguments of certain `sizes`."""


class CapturedGraph:
    """Calls the program of the given parameters; makes it on first use, and tells `add` what was compiled for it."""

    def __init__(
        self,
        layers: Mapping[torch.fx.Node, str],
        parameters: Sequence[str | None],
        stored: Stored,
        build: Build,
        add: Callable[[Compilation], None],
        names_by_id: Callable[[], Mapping[int, str]],
        constants: tuple[torch.Tensor, ...] = (),
        written: tuple[int, ...] | None = (),
        *,
        has_unknown_sizes: bool = False,
    ):
        self.written = written
        """Arguments whose new values come before the results; None if torch does other work around the graph, too."""
        self._layers = layers
        self._parameters = tuple(parameters)
        self._build = build
        self._add = add
        self._names_by_id = names_by_id
        self._constants = constants
        """Its last arguments, which no caller gives."""
        self._positions = [i for i, name in enumerate(parameters) if name is not None]
        self._built: dict[tuple[Parameters, Stored], Compilation] = {}
        """What was compiled, by its parameters."""
        self._programs: dict[tuple[Parameters, Stored], Program] = {}
        self.first = self._make(self._parameters, stored)
        """The program of the parameters that the graph was captured with."""
        self._stored = stored
        self._has_unknown_sizes = has_unknown_sizes
        self._variants: dict[tuple[frozenset[int], Sizes | None], CapturedGraph] = {}
        """The same without results that nobody reads, and for certain sizes, by both."""
        self._remembered: dict[tuple[int, ...], tuple[weakref.ref, Program]] = {}
        self._settled: dict[int, tuple[SettledCall, ...]] = {}
        """What runs programs on the parameters of earlier calls, while they are as then: by the id of the first
        parameter, which several layers may share."""

    def __call__(self, values: tuple[Any, ...]) -> tuple:
        """Run the program of these arguments, by whoever takes note of it."""
        note = current.note
        return self.run(values) if note is None else note(self, values)

    def run(self, values: tuple[Any, ...]) -> tuple:
        """Run the program of these arguments."""
        if self._constants:
            values = (*values, *self._constants)
        if not self._positions:
            return self.first(*values)
        key = id(values[self._positions[0]])
        for settled in self._settled.get(key, ()):
            results = settled.run(values)
            if results is not None:
                return results
        return self._run(key, values)

    def _run(self, key: int, values: tuple[Any, ...]) -> tuple:
        """Look for the program and its weights, and remember both."""
        program = self.find(values)
        results = program(*values)
        settled = program.settled(values, self._positions)
        if settled is not None:
            if len(self._settled) >= _MOST_REMEMBERED + 2 * len(self._programs):
                self._settled.clear()
            others = [other for other in self._settled.get(key, ()) if not other.is_over]
            self._settled[key] = settled, *others
        return results

    def freeze(self, values: tuple[Any, ...]) -> Callable[[tuple], tuple]:
        """The program of these arguments, with the weights that are there now, as a function of any arguments."""
        constants = self._constants
        run = self.program_of(values).freeze((*values, *constants))
        return run if not constants else lambda values: run((*values, *constants))

    def variant(self, unread: frozenset[int], values: Sequence[Any]) -> "CapturedGraph":
        """The same for arguments of the sizes of these, and without some results: what only those need is not computed.

        `values` are what a caller gives.
        """
        sizes = tuple(map(_size_of, (*values, *self._constants))) if self._has_unknown_sizes else None
        if not unread and sizes is None:
            return self
        with compile_lock():
            if (unread, sizes) not in self._variants:
                if len(self._variants) >= _MOST_VARIANTS:
                    self._variants.clear()
                self._variants[unread, sizes] = self._make_variant(unread, sizes)
            return self._variants[unread, sizes]

    def _make_variant(self, unread: frozenset[int], sizes: Sizes | None) -> "CapturedGraph":
        return CapturedGraph(
            layers=self._layers,
            parameters=self._parameters,
            stored=self._stored,
            build=functools.partial(self._build, unread=unread, sizes=sizes),
            add=_add_nowhere,
            names_by_id=self._names_by_id,
            constants=self._constants,
            written=self.written,
        )

    def entry(self, values: tuple[Any, ...]) -> tuple[Entry | None, Sequence[Any]]:
        """How another program runs the program of these arguments as a step, and all that it takes.

        That is what a caller gives, constants, and the weights that are there now. None if the program is no such step.
        """
        program = self.program_of(values)
        given = (*values, *self._constants)
        return program.entry, () if program.entry is None else (*given, *program.parts(given))

    def program_of(self, values: tuple[Any, ...]) -> Program:
        """The program of what a caller gives."""
        return self.find((*values, *self._constants))

    def module_of(self, values: Sequence[Any]) -> str:
        """The name of the module that these arguments are the parameters of."""
        known = self._names_by_id()
        return _common_module([known.get(id(values[i])) for i in self._positions])

    def find(self, values: Sequence[Any]) -> Program:
        """The program of these arguments."""
        if not self._positions:
            return self.first
        parameters = [values[i] for i in self._positions]
        key = tuple(map(id, parameters))
        known = self._remembered.get(key)
        # The id of a parameter that was freed may have been reused.
        if known is not None and known[0]() is parameters[0]:
            return known[1]
        program = self._find(values)
        if len(self._remembered) >= _MOST_REMEMBERED + 2 * len(self._programs):
            self._remembered.clear()
        self._remembered[key] = weakref.ref(parameters[0]), program
        return program

    def _find(self, values: Sequence[Any]) -> Program:
        known = self._names_by_id()
        names = tuple(
            None if name is None else known.get(id(value), name)
            for name, value in zip(self._parameters, values, strict=True)
        )
        stored = stored_schemes(values)
        with compile_lock():
            return self._programs.get((names, stored)) or self._make(names, stored)

    def _make(self, names: Parameters, stored: Stored) -> Program:
        """The program of parameters that come for the first time."""
        alike = [known for known, held in self._built if held == stored]
        made = next((bound for known in alike if (bound := self._bind(known, names, stored)) is not None), None)
        if made is None:
            with progress.doing(lambda: f"compiling {_common_module(names) or 'the model'}"):
                made = self._built[names, stored] = self._build(self._layers_of(names), names, stored)
        assert made.program is not None, "a compilation that was built has a program"
        self._add(made)
        self._programs[names, stored] = made.program
        return made.program

    def _bind(self, known: Parameters, names: Parameters, stored: Stored) -> Compilation | None:
        """A compilation bound to other parameters; None if their layers are not quantized alike."""
        renaming, built = Renaming(known, names), self._built[known, stored]
        layers = {layer: renaming.layer(layer) for layer in self._layers_of(known).values()}
        is_one_to_one = renaming.is_one_to_one and len(set(layers.values())) == len(layers)
        # The weights of experts are layers of their own.
        layers |= {name: renaming.parameter(name) for name in known if name is not None}
        if not is_one_to_one or not all(built.settings.are_alike(*pair) for pair in layers.items()):
            return None
        return built.bound_to(renaming)

    def _layers_of(self, names: Parameters) -> dict[torch.fx.Node, str]:
        renaming = Renaming(self._parameters, names)
        return {node: renaming.layer(layer) for node, layer in self._layers.items()}


def _size_of(value: Any) -> Any:
    return Layout(tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def _add_nowhere(_: Compilation) -> None:
    """What was compiled is another form of what is known already."""


def _common_module(parameters: Sequence[str | None]) -> str:
    """The innermost module that holds all of some parameters; empty for the net itself."""
    paths = [name.split(".")[:-1] for name in parameters if name is not None]
    # Of all paths, the first and the last in order have the least in common.
    pairs = zip(min(paths, default=[]), max(paths, default=[]), strict=False)
    return ".".join(left for left, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
