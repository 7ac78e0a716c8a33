"""An FX graph becomes a function whose ops have their layer and source line, and whose arguments their parameter."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.frontend.importer import import_graph
from steelyard.ir.attributes import PARAMETER
from steelyard.ir.functions import argument_name
from steelyard.passes.raise_gemms import layer_of


def linear(x, w):
    return torch.relu(x @ w.t())


def imported() -> ir.Module:
    graph = make_fx(linear)(torch.randn(4, 8), torch.randn(6, 8)).graph
    for node in graph.nodes:
        node.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    y = self.up(x)'
    layers = {node: "mlp.up" for node in graph.nodes if "mm" in str(node.target)}
    return import_graph(graph, make_context(), name="forward", layers=layers, parameters=[None, "mlp.up.weight"])


def test_parameters_are_named():
    module = imported()
    arguments = module.body.operations[0].regions[0].blocks[0].arguments
    assert [argument_name(argument, PARAMETER) for argument in arguments] == [None, "mlp.up.weight"]


def test_ops_know_their_layer_and_line():
    module = imported()
    block = module.body.operations[0].regions[0].blocks[0]
    locations = {op.operation.name: op.location for op in block.operations}
    assert layer_of(locations["torch.aten.mm"]) == "mlp.up"
    assert layer_of(locations["torch.aten.relu"]) == ""
    assert all('"model.py":7' in str(location) for location in locations.values())


def test_types_and_result_are_those_of_the_graph():
    (function,) = imported().body.operations
    assert str(function.type) == ("(!torch.vtensor<[4,8],f32>, !torch.vtensor<[6,8],f32>) -> !torch.vtensor<[4,6],f32>")
