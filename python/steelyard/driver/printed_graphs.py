"""The graphs of a net as IR: each is printed once, with a call for each layer that it is bound to."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property

from torch_mlir import ir

from steelyard.dialect import make_context, print_module
from steelyard.driver.compilation import Compilation
from steelyard.ir.layers import check_matched, layers_of, lines_with_layers, print_layers
from steelyard.ir.nesting import graph_names, nest_modules
from steelyard.ir.renamed_modules import rename_module


class _Graph:
    """A graph at a stage, and the compilations that share it."""

    def __init__(self, name: str, source: Compilation, stage: str, context: ir.Context):
        self.name = name
        self._source = source
        self._stage = stage
        self._context = context
        self.module = self._parse()
        self.layers = layers_of(self.module.operation)
        self.users: list[Compilation] = []

    @property
    def is_shared(self) -> bool:
        return any(user.renaming is not None for user in self.users)

    def place_of(self, user: Compilation) -> str:
        """The module that the graph is called for by one of the users."""
        return self._renamed([self._place], user)[0]

    @cached_property
    def _place(self) -> str:
        """The innermost module around all layers that differ between the users, or the first of them."""
        # The same at all stages, although later ones have fewer ops.
        traced = ir.Module.parse(self._source.module("traced"), self._context)
        differing = [layer for layer in layers_of(traced.operation) if self._differs(layer)]
        around = _module_around(differing)
        return around if self._differs(around) else differing[0]

    def _differs(self, layer: str) -> bool:
        return any(user.renaming is not None and user.renaming.layer(layer) != layer for user in self.users)

    def layers_of(self, user: Compilation) -> list[str]:
        """The layers of one of the users."""
        return self._renamed(self.layers, user)

    def module_of(self, user: Compilation) -> ir.Module:
        """The module with the names of one of the users."""
        module = self._parse()
        if user.renaming is not None:
            rename_module(module.operation, user.renaming)
        return module

    def _renamed(self, layers: Iterable[str], user: Compilation) -> list[str]:
        return [layer if user.renaming is None else user.renaming.layer(layer) for layer in layers]

    def _parse(self) -> ir.Module:
        return ir.Module.parse(self._source.module(self._stage), self._context)


def _module_around(layers: Sequence[str]) -> str:
    """The innermost module that holds some layers, which may be the only one of them."""
    common: list[str] = []
    for parts in zip(*(layer.split(".") for layer in layers), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def distinct(compilations: Sequence[Compilation]) -> list[Compilation]:
    """The compilations that others are bound from, or that stand alone."""
    return list(dict.fromkeys(compilation.source for compilation in compilations))


def print_graphs(compilations: Sequence[Compilation], stage: str) -> str:
    """The IR of a stage, each graph once; calls stand in the order in which layers first ran."""
    context = make_context()
    return print_module(_nested(_graphs(compilations, stage, context), compilations, context).operation)


def lines_of_graphs(compilations: Sequence[Compilation], stage: str) -> list[tuple[str, str]]:
    """The lines of what `print_graphs` gives, each with its layer."""
    context = make_context()
    return lines_with_layers(_nested(_graphs(compilations, stage, context), compilations, context).operation)


def printed_layers(compilations: Sequence[Compilation]) -> dict[str, str]:
    """Each layer that shares a graph, and the layer by whose name that graph is printed."""
    graphs = _graphs(compilations, "traced", make_context())
    found: dict[str, str] = {}
    for user in compilations:
        graph = graphs[user.source]
        if user.renaming is not None:
            found |= dict(zip(graph.layers_of(user), graph.layers, strict=True))
    return found


def _nested(
    graphs: Mapping[Compilation, _Graph], compilations: Sequence[Compilation], context: ir.Context
) -> ir.Module:
    """All graphs in one module, each once, with a call for each layer that shares one."""
    shared = [(graphs[c.source], c) for c in compilations if graphs[c.source].is_shared]
    calls = [(graph.name, graph.place_of(compilation)) for graph, compilation in shared]
    modules = {graph.name: graph.module for graph in graphs.values()}
    return nest_modules(modules, context, calls)


def print_graphs_of_layers(compilations: Sequence[Compilation], stage: str, pattern: str) -> str:
    """The ops of the layers that a pattern matches, each with the names of its layer."""
    context = make_context()
    graphs = _graphs(compilations, stage, context)
    users = [(graphs[compilation.source], compilation) for compilation in compilations]
    check_matched([layer for graph, user in users for layer in graph.layers_of(user)], pattern)
    modules: dict[str, ir.Module] = {}
    for graph, user in users:
        if not graph.is_shared:
            modules[graph.name] = graph.module
        elif any(fnmatchcase(layer, pattern) for layer in graph.layers_of(user)):
            name = f"{graph.name} at {graph.place_of(user)}"
            modules[name if name not in modules else f"{name} ({len(modules)})"] = graph.module_of(user)
    return print_layers(nest_modules(modules, context).operation, pattern)


def _graphs(compilations: Sequence[Compilation], stage: str, context: ir.Context) -> dict[Compilation, _Graph]:
    sources = zip(graph_names(), distinct(compilations), strict=False)
    graphs = {source: _Graph(name, source, stage, context) for name, source in sources}
    for compilation in compilations:
        graphs[compilation.source].users.append(compilation)
    return graphs
