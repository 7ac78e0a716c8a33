"""Layers with the same code share a program, bound to the names of each; results are those of programs of their own."""

import copy
import gc
import weakref

import pytest
import torch
from breaking_models import Block, Blocks
from torch import nn
from torch.profiler import profile

import steelyard
from steelyard import recipes
from steelyard.errors import NonFiniteError

DEPTH = 3


def make_model() -> Blocks:
    torch.manual_seed(0)
    return Blocks(DEPTH)


def make_input() -> torch.Tensor:
    return torch.randn(12, 64, generator=torch.Generator().manual_seed(1))


def apart(net):
    """A net whose layers are compiled each on its own, although they are alike."""
    object.__setattr__(net._steelyard.backend.settings, "are_alike", lambda layer, other: False)
    return net


def compilations(net) -> list:
    return net._steelyard.backend.compilations


def built(net) -> list:
    return [compilation for compilation in compilations(net) if compilation.source is compilation]


def train(net, x: torch.Tensor, steps: int = 2) -> list[torch.Tensor]:
    """The results, the gradients and the state of some steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for _ in range(steps):
        y = net(x)
        y.square().mean().backward()
        seen += [y.detach(), *(parameter.grad.clone() for parameter in net.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    state = net._steelyard.backend.state.tensors
    return [*seen, *(state[name] for name in sorted(state))]


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


MANY = [
    name if name in ("fp8-delayed", "nvfp4") else pytest.param(name, marks=pytest.mark.slow) for name in recipes.NAMES
]


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", MANY)
def test_training_has_the_bits_of_programs_of_their_own(recipe):
    bound = steelyard.compile(make_model(), recipe)
    own = apart(steelyard.compile(make_model(), recipe))
    x = make_input()
    assert_same(train(bound, x), train(own, x))
    assert len(compilations(bound)) == len(compilations(own)) == len(built(own))
    # The embedding with the first half of the first block, halves of blocks, and the last half with the head.
    assert len(built(bound)) < len(built(own))
    assert sorted(map(_row, bound.explain().rows)) == sorted(map(_row, own.explain().rows))
    states = bound._steelyard.backend.state.tensors
    assert states.keys() == own._steelyard.backend.state.tensors.keys()
    if recipe == "fp8-delayed":
        assert {f"blocks.{i}.down.input.scale" for i in range(DEPTH)} <= states.keys()


def _row(row) -> tuple:
    return row.layer, row.kind, row.M, row.N, row.K, row.lhs, row.rhs, row.kernel, row.weight, row.epilogue


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", MANY)
def test_inference_has_the_bits_of_programs_of_their_own(recipe):
    bound = steelyard.compile(make_model(), recipe)
    own = apart(steelyard.compile(make_model(), recipe))
    x = make_input()
    with torch.no_grad():
        assert torch.equal(bound(x), own(x))
        # Each layer has its own weights, and notices when they are written.
        for net in (bound, own):
            net.blocks[1].down.weight.mul_(2)
        assert torch.equal(bound(x), own(x))
    assert len(built(bound)) < len(built(own)) == len(compilations(bound))


def test_parts_and_the_whole_quantize_a_weight_once(quantized_shapes):
    """A bound program and one that was compiled for the same layer alone make the same weight."""
    net = steelyard.compile(make_model(), "fp8-delayed")
    x = make_input()
    with torch.no_grad():
        net(x)
        count = quantized_shapes.count((64, 96))
        assert count == DEPTH
        net.blocks[2].down(torch.randn(4, 96))
    assert quantized_shapes.count((64, 96)) == count


def test_a_layer_with_another_recipe_has_a_program_of_its_own():
    x = make_input()
    overrides = {"blocks.1.*": "nvfp4"}
    net = steelyard.compile(make_model(), "mxfp8", overrides=overrides)
    with torch.no_grad():
        y = net(x)
    families = {row.layer: row.lhs for row in net.explain().rows}
    assert {layer: families[layer] for layer in ("blocks.0.down", "blocks.1.down", "blocks.2.down")} == {
        "blocks.0.down": "e4m3 1x32",
        "blocks.1.down": "e2m1 1x16",
        "blocks.2.down": "e4m3 1x32",
    }
    assert len(built(net)) < len(compilations(net))
    expected = apart(steelyard.compile(make_model(), "mxfp8", overrides=overrides))
    with torch.no_grad():
        assert torch.equal(y, expected(x))


def test_layers_bind_to_whichever_program_is_quantized_alike():
    """The first block differs from all others: those share the program of the second."""
    net = steelyard.compile(Blocks(6), "mxfp8", overrides={"blocks.0.*": "nvfp4"})
    with torch.no_grad():
        net(make_input())
    sources = {}
    for compilation in compilations(net):
        for row in compilation.rows:
            sources[row.layer] = compilation.source
    halves = [sources[f"blocks.{i}.up"] for i in range(1, 6)]
    assert len(set(map(id, halves))) == 1
    assert sources["blocks.0.down"] is not sources["blocks.1.down"]


@pytest.mark.parametrize("number", [0, DEPTH - 1])
def test_a_value_that_is_not_finite_is_of_the_layer_that_ran(number):
    net = steelyard.compile(make_model(), "mxfp8", check_finite=True)
    x = make_input()
    net(x).sum().backward()
    name = f"blocks.{number}.down"
    with torch.no_grad():
        net.blocks[number].down.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=rf"weight of layer '{name}' must be finite"):
        net(x)
    with torch.no_grad():
        net.blocks[number].down.weight[0, 0] = 0
        net.blocks[number].up.bias[0] = torch.inf
    with pytest.raises(NonFiniteError, match=rf"input of layer '{name}' must be finite"):
        net(x)


def test_a_gradient_that_is_not_finite_is_of_the_layer_that_ran():
    net = steelyard.compile(make_model(), "mxfp8", check_finite=True)
    x = make_input()
    net(x).sum().backward()

    def spoil(module, inputs, output) -> None:
        output.register_hook(lambda gradient: gradient * torch.nan)

    net.model.blocks[1].register_forward_hook(spoil)
    with pytest.raises(NonFiniteError, match=r"grad_output of layer 'blocks.1.down' must be finite"):
        net(x).sum().backward()


def test_the_profiler_names_the_layer_that_ran():
    net = steelyard.compile(make_model(), "mxfp8")
    x = make_input()
    net(x).sum().backward()
    net.requantize()
    with profile() as profiler:
        net(x).sum().backward()
    names = [event.name for event in profiler.events() if event.name.startswith("steelyard")]
    gemms = sorted(name for name in names if " gemm " in name)
    explained = [f"steelyard {row.kernel} {row.kind} {row.M}x{row.N}x{row.K} {row.layer}" for row in net.explain().rows]
    assert gemms == sorted(explained)
    weights = [name for name in names if " quantize 64x96 " in name]
    assert sorted(weights) == [f"steelyard cpu mx quantize 64x96 blocks.{i}.down" for i in range(DEPTH)]


def test_calls_that_nothing_watches_run_the_same_function():
    net = steelyard.compile(make_model(), "mxfp8")
    with torch.no_grad():
        net(make_input())
    for compilation in compilations(net):
        pairs = zip(compilation.program.made.values(), compilation.source.program.made.values(), strict=True)
        assert all(emitted.run is source.run for emitted, source in pairs)


def test_memory_counts_shared_memory_once_and_all_that_is_kept():
    bound, own = steelyard.compile(make_model(), "mxfp8"), apart(steelyard.compile(make_model(), "mxfp8"))
    x = make_input()
    for net in (bound, own):
        net(x).sum().backward()
    left, right = bound.memory(), own.memory()
    assert {key: left[key] for key in left if key != "workspace"} == {
        key: right[key] for key in right if key != "workspace"
    }
    assert left["workspace"] < right["workspace"]
    one = steelyard.compile(Block(), "mxfp8")
    one(x.clone().requires_grad_()).sum().backward()
    assert left["kept_for_backward"] >= DEPTH * one.memory()["kept_for_backward"]


def test_quantized_parameters_replace_those_of_all_layers():
    model = make_model().eval()
    plain = steelyard.compile(copy.deepcopy(model), "mxfp8")
    net = steelyard.compile(model, "mxfp8", weights="quantized")
    x = make_input()
    with torch.no_grad():
        expected = plain(x)
        for _ in range(3):
            assert torch.equal(net(x), expected)
    names = {name for name, p in model.named_parameters() if isinstance(p, steelyard.tensor.QuantizedTensor)}
    assert names == {name for name, p in model.named_parameters() if p.dim() == 2}
    assert sorted({row.weight for row in net.explain().rows}) == sorted(names)


class Layer(nn.Module):
    """A layer that is a graph of its own if `breaks` is set."""

    breaks = True

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 64)

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.tanh(self.proj(x))


class WholeLayer(Layer):
    breaks = False


class Tied(nn.Module):
    """Layers that share a weight, but not their biases."""

    def __init__(self, layer_class: type[Layer]):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(layer_class() for _ in range(DEPTH))
        for layer in self.layers:
            layer.proj.weight = self.layers[0].proj.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Parallel(nn.Module):
    """Layers that read the same input, which has no gradient: their backwards read no parameter."""

    def __init__(self, layer_class: type[Layer]):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(layer_class() for _ in range(DEPTH))

    def forward(self, x):
        return torch.cat([layer(x) for layer in self.layers])


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["fp8-delayed", pytest.param("mxfp8", marks=pytest.mark.slow), "nvfp4"])
@pytest.mark.parametrize("make", [Tied, Parallel])
def test_backwards_are_those_of_their_layers(make, recipe):
    """Results, gradients and states are those of a net in one program."""
    bound, whole = (steelyard.compile(make(layer), recipe, blocks=False) for layer in (Layer, WholeLayer))
    x = make_input()
    assert_same(train(bound, x), train(whole, x))
    assert len(compilations(whole)) == 1
    assert len(compilations(bound)) == DEPTH
    assert len(built(bound)) == (1 if make is Parallel else 2)
    assert bound._steelyard.backend.state.tensors.keys() == whole._steelyard.backend.state.tensors.keys()


class Own:
    """A quantizer for each layer, which notes what it is for."""

    def __init__(self):
        self.roles = []

    def __call__(self, role):
        self.roles.append((role.layer, str(role)))
        return


def test_users_own_quantizers_are_asked_for_each_layer():
    factory = Own()
    net = steelyard.compile(make_model(), recipes.CustomRecipe(factory))
    with torch.no_grad():
        net(make_input())
    assert {f"blocks.{i}.down" for i in range(DEPTH)} <= {layer for layer, _ in factory.roles}
    assert len(built(net)) == len(compilations(net))


def test_a_freed_net_frees_bound_programs():
    net = steelyard.compile(make_model(), "fp8-delayed")
    net(make_input()).sum().backward()
    references = [weakref.ref(compilation.program) for compilation in compilations(net)]
    assert len(built(net)) < len(references)
    del net
    for _ in range(4):
        gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
