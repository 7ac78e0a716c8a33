"""The IR of layers that share a graph: once, with a call for each layer."""

import re
import subprocess
import sys
from functools import cache
from itertools import pairwise

import pytest
import torch
from breaking_models import Blocks
from torch import nn

import steelyard
from steelyard.dialect import make_context, parse_module, print_module
from steelyard.driver.stages import STAGES
from steelyard.errors import SteelyardError
from steelyard.passes import build_pass_manager, parse_pipeline


@cache
def make_net(depth: int, recipe: str = "mxfp8", *, apart: bool = False):
    """A net of blocks that share their graphs, or that do not, although they are alike."""
    torch.manual_seed(0)
    net = steelyard.compile(Blocks(depth), recipe, blocks=False)
    if apart:
        object.__setattr__(net._steelyard.backend.settings, "are_alike", lambda layer, other: False)
    with torch.no_grad():
        net(torch.randn(4, 64))
    return net


def calls_in(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if "scaled.call_block" in line]


def halves(depth: int) -> list[str]:
    """The calls of the two halves of each block; the second has one layer."""
    places = [(graph, f"blocks.{i}{layer}") for i in range(depth) for graph, layer in ((1, ""), (2, ".down"))]
    return [f'scaled.call_block @graph{graph} at "{place}"' for graph, place in places]


@pytest.mark.parametrize("stage", ["fused", "lowered"])
def test_a_deeper_net_has_only_more_calls(stage):
    shallow, deep = (make_net(depth).ir(stage) for depth in (2, 30))
    assert calls_in(shallow) == halves(2)
    assert calls_in(deep) == halves(30)
    assert [line for line in shallow.splitlines() if "call_block" not in line] == [
        line for line in deep.splitlines() if "call_block" not in line
    ]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def test_repeated_blocks_are_one_function_and_a_call_for_each():
    texts = []
    for depth in (4, 30):
        net = steelyard.compile(nn.Sequential(*(Residual() for _ in range(depth))), "mxfp8")
        net(torch.randn(4, 32)).sum().backward()
        texts.append(net.ir("fused"))
        assert len(net.explain().rows) == 6 * depth - 1
    shallow, deep = texts
    # The input of the first block has no gradient: it has a function of its own.
    assert calls_in(deep)[:2] == ['scaled.call_block @graph1 at "1"', 'scaled.call_block @graph1 at "2"']
    assert len(calls_in(shallow)) == 3
    assert len(calls_in(deep)) == 29
    assert deep.count("\n") == shallow.count("\n") + 26
    assert deep.count("func.func") == 2


def test_a_net_without_shared_graphs_has_no_calls():
    net = make_net(1)
    assert calls_in(net.ir("fused")) == []
    text = make_net(3, apart=True).ir("fused")
    assert calls_in(text) == []
    assert all(f'at "blocks.{i}.down"' in text for i in range(3))


def test_a_layer_is_shown_as_if_it_were_compiled_on_its_own():
    shared, own = (make_net(3, "fp8-delayed", apart=apart) for apart in (False, True))
    for stage in STAGES:
        for layer in ("blocks.0.down", "blocks.2.down", "blocks.2.*"):
            left, right = (_without_module_names(net.ir(stage, layer=layer)) for net in (shared, own))
            assert left == right
            assert any(layer.removesuffix(".*") in line for line in left)
            assert not any("blocks.1" in line for line in left)


def _without_module_names(text: str) -> list[str]:
    lines = [re.sub(r"module @\S+( at [^\"]*\")? \{", "module {", line) for line in text.splitlines()]
    # Where other graphs are left out depends on how many there are.
    return [line for line in lines if line.strip() != "// ..."]


def test_a_pattern_may_take_several_layers_of_a_graph():
    text = make_net(3).ir("fused", layer="blocks.*.down")
    names = [line.strip() for line in text.splitlines() if "module @" in line]
    assert names == [f'module @"graph2 at blocks.{i}.down" {{' for i in range(3)]
    assert [text.count(f'at "blocks.{i}.down" ') for i in range(3)] == [1, 1, 1]


def test_an_unknown_layer_names_those_of_all_calls():
    with pytest.raises(SteelyardError, match=r"no layer of this stage matches 'block'.*blocks\.2\.up, embedding, head"):
        make_net(3).ir("fused", layer="block")


def test_a_dump_has_each_graph_once(tmp_path):
    paths = make_net(4).ir_dump(tmp_path)
    assert {path.name.partition("_")[0] for path in paths} == {f"graph{i}" for i in range(4)}
    assert len([path for path in paths if path.name.endswith("_program.py")]) == 4


def test_passes_take_the_text_of_one_stage_to_the_next():
    net = make_net(3)
    # Text has no locations, by which the layers of a traced module are known.
    for stage, following in pairwise(STAGES[1:]):
        context = make_context()
        module = parse_module(net.ir(stage), context)
        build_pass_manager(parse_pipeline(f"steelyard-{following}"), context).run(module.operation)
        assert calls_in(print_module(module.operation)) == halves(3)
        assert _sorted(print_module(module.operation)) == _sorted(net.ir(following))


def _sorted(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines())


def test_the_tool_reads_the_text_of_a_net(tmp_path):
    path = tmp_path / "net.mlir"
    path.write_text(make_net(3).ir("raised"))
    command = [sys.executable, "-m", "steelyard.tools.opt", str(path)]
    pipeline = "steelyard-quantized,steelyard-fused,steelyard-partitioned,steelyard-lowered"
    ran = subprocess.run([*command, "-p", pipeline], capture_output=True, text=True, check=True)
    assert calls_in(ran.stdout) == halves(3)
    path.write_text(path.read_text().replace("call_block @graph2", "call_block @graph9"))
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "there must be a module @graph9 beside the call, got none" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_programs_for_cuda_are_shared_too():
    torch.manual_seed(0)
    net = steelyard.compile(Blocks(4), "mxfp8", target="cuda:sm_100a", blocks=False)
    with torch.no_grad():
        net.lower(torch.randn(4, 64))
    assert calls_in(net.ir("lowered")) == calls_in(net.ir("gpu")) == halves(4)
    graphs = net._steelyard.backend.compilations
    assert len(graphs) == 2 + 2 * 4
    # The kernels of a graph are there once.
    assert net.ir("ptx").count(".visible .entry") == sum(
        graph.ptx.count(".visible .entry") for graph in graphs if graph.source is graph
    )
    assert {row.layer for row in net.explain().rows} >= {
        f"blocks.{i}.{name}" for i in range(4) for name in ("up", "down")
    }
