"""Variants of graphs compute what the graphs compute, for the sizes and the results that they are for."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from steelyard.frontend.graph_variants import Layout, has_unknown_sizes, with_sizes, without_results


def compute(x, w):
    y = x.view(x.shape[0] * x.shape[1], -1) @ w
    first, second = y.split([1, y.shape[0] - 1])
    return y.view(*x.shape[:2], -1), torch.cat([second, first]), torch.full((x.shape[0],), 2.0) + y.sum()


def captured(*arguments, mode="symbolic"):
    return make_fx(compute, tracing_mode=mode)(*arguments).graph


def run(graph, *arguments):
    return torch.fx.Interpreter(torch.fx.GraphModule(torch.nn.Module(), graph)).run(*arguments)


def tensors(rows):
    return torch.randn(2, rows, 4), torch.randn(4, 5)


def test_a_graph_of_known_sizes_is_said_to_be_one():
    assert has_unknown_sizes(captured(*tensors(3)))
    assert not has_unknown_sizes(captured(*tensors(3), mode="fake"))


@pytest.mark.parametrize("rows", [3, 7])
def test_all_sizes_follow_from_those_of_the_arguments(rows):
    graph = captured(*tensors(3))
    arguments = tensors(rows)
    layers = {node: f"layer {number}" for number, node in enumerate(graph.nodes)}
    sizes = tuple(Layout(tuple(x.shape), x.stride()) for x in arguments)
    made, found = with_sizes(graph, layers, sizes)
    assert all(map(torch.equal, run(made, *arguments), compute(*arguments)))
    values = [node.meta["val"] for node in made.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert values
    assert all(type(size) is int for value in values for size in (*value.shape, *value.stride()))
    assert not [node for node in made.nodes if node.op == "call_function" and "sym_size" in str(node.target)]
    names = {node.name: layer for node, layer in layers.items()}
    assert all(names[node.name] == layer for node, layer in found.items())
    (product,) = [node for node in made.nodes if node.target is torch.ops.aten.mm.default]
    assert product in found


def test_a_graph_stays_as_it_is_where_nothing_is_left_out():
    graph = captured(*tensors(3))
    assert without_results(*with_sizes(graph, {}, None), ()) == (graph, {})


def test_what_only_unread_results_need_is_left_out():
    graph, arguments = captured(*tensors(3), mode="fake"), tensors(3)
    made, _ = without_results(graph, {}, {1})
    assert not [node for node in made.nodes if node.target is torch.ops.aten.cat.default]
    first, _, last = compute(*arguments)
    assert all(map(torch.equal, run(made, *arguments), (first, last)))
