"""Variants of a captured graph: without results that nobody reads, or for sizes that the graph leaves open."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg

Layers = Mapping[torch.fx.Node, str]


class Layout(NamedTuple):
    """The layout of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]


Sizes = tuple[Any, ...]
"""Of each argument of a graph: the layout of a tensor, or the value of a number."""


def without_results(
    graph: torch.fx.Graph, layers: Layers, unread: Collection[int]
) -> tuple[torch.fx.Graph, Mapping[torch.fx.Node, str]]:
    """A graph without some of its results, by number, and what only these need; and the layers of its nodes."""
    if not unread:
        return graph, layers
    copied, nodes = torch.fx.Graph(), {}
    results = copied.graph_copy(graph, nodes)
    copied.output(tuple([value for number, value in enumerate(results) if number not in unread]))  # pyright: ignore[reportArgumentType]
    copied.eliminate_dead_code()
    return copied, {nodes[node]: layer for node, layer in layers.items() if node in nodes}


def has_unknown_sizes(graph: torch.fx.Graph) -> bool:
    """Whether some arguments have sizes that the graph leaves open, or are numbers."""
    values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    return any(_is_open(value) for value in values)


def with_sizes(
    graph: torch.fx.Graph, layers: Layers, sizes: Sizes | None
) -> tuple[torch.fx.Graph, Mapping[torch.fx.Node, str]]:
    """A graph for arguments of certain sizes, in which no size is open; and the layers of its nodes."""
    if sizes is None:
        return graph, layers
    resolver = _Resolver(sizes)
    for node in graph.nodes:
        resolver.copy(node)
    made = resolver.copies
    return resolver.graph, {made[node]: layer for node, layer in layers.items() if isinstance(made.get(node), _Node)}


_Node = torch.fx.Node


class _Resolver:
    """Copies a graph node by node, with the sizes that the arguments lead to; what is known then is a constant."""

    def __init__(self, sizes: Sequence[Any]):
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, Any] = {}
        """What stands for each node: its copy, or a constant."""
        self._fakes = FakeTensorMode()
        self._values: dict[torch.fx.Node, Any] = {}
        """Of each node that was copied."""
        self._sizes = iter(sizes)

    def copy(self, node: torch.fx.Node) -> None:
        """Copy the next node."""
        match node.op:
            case "placeholder":
                self._take(node)
            case "output":
                self.graph.output(map_arg(node.args[0], self.copies.__getitem__))
            case _:
                self._call(node)

    def _take(self, node: torch.fx.Node) -> None:
        size, known = next(self._sizes), node.meta["val"]
        copied = self.graph.placeholder(node.name)
        if not isinstance(known, torch.Tensor):
            copied.meta = node.meta | {"val": size}
            self.copies[node] = self._values[node] = size
            return
        layout = size if _is_open(known) else Layout(tuple(known.shape), known.stride())
        with self._fakes:
            value = torch.empty_strided(*layout, dtype=known.dtype, device=known.device)
        self._keep(node, copied, value)

    def _call(self, node: torch.fx.Node) -> None:
        args, keywords = map_arg((node.args, node.kwargs), self._values.__getitem__)  # pyright: ignore[reportArgumentType]
        with self._fakes:
            value = node.target(*args, **keywords)  # pyright: ignore[reportCallIssue]
        if not _holds_tensors(value):
            self.copies[node] = self._values[node] = value
            return
        args, keywords = map_arg((node.args, node.kwargs), self.copies.__getitem__)  # pyright: ignore[reportArgumentType]
        copied = self.graph.create_node(node.op, node.target, args, keywords, node.name)  # pyright: ignore[reportArgumentType]
        self._keep(node, copied, value)

    def _keep(self, node: torch.fx.Node, copied: torch.fx.Node, value: Any) -> None:
        copied.meta = {key: own for key, own in node.meta.items() if key != "tensor_meta"} | {"val": value}
        self.copies[node], self._values[node] = copied, value


def _is_open(value: Any) -> bool:
    """Whether a size of a tensor, or a number, is not known."""
    if isinstance(value, torch.Tensor):
        return not all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    return not isinstance(value, int | float | str | None)


def _holds_tensors(value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, torch.Tensor) for part in parts)
