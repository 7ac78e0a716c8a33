"""Submodules and methods that are reached through a net run compiled; the model itself never does."""

import copy
import functools
import inspect
import pickle

import pytest
import torch
from oracle import assert_follows, make_oracle
from small_models import make_llama, make_mlp, quantized_layers
from torch import nn

import steelyard
from steelyard import recipes


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 40)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(40, 40), nn.GELU(), nn.LayerNorm(40)) for _ in range(3))
        self.heads = nn.ModuleDict({"small": nn.Linear(40, 7), "large": nn.Linear(40, 70)})
        self.norm = nn.LayerNorm(40)

    def encode(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, tokens, head="small"):
        return self.heads[head](self.encode(tokens))


@pytest.fixture
def encoder():
    model = Encoder().eval()
    return model, steelyard.compile(model, "mxfp8")


@torch.no_grad()
def assert_part_follows(part: nn.Module, module: nn.Module, x: torch.Tensor) -> None:
    assert_follows(part(x), make_oracle(nn.Sequential(module), "mxfp8")(x), module(x))


@pytest.mark.parametrize(
    ("reach", "names"),
    [
        (lambda m: m.layers[1], ["layers.1.0"]),
        (lambda m: m.layers[-1], ["layers.2.0"]),
        (lambda m: list(m.layers)[0], ["layers.0.0"]),  # noqa: RUF015
        (lambda m: m.layers[2][0], ["layers.2.0"]),
        (lambda m: m.heads["large"], ["heads.large"]),
        (lambda m: dict(m.heads.items())["small"], ["heads.small"]),
        (lambda m: list(m.heads.values())[1], ["heads.large"]),
        (lambda m: m.get_submodule("layers.0"), ["layers.0.0"]),
        (lambda m: m.layers[0][:2], ["layers.0.0"]),
    ],
)
def test_a_submodule_called_through_the_net_runs_quantized(reach, names, encoder, gemm_calls):
    model, net = encoder
    x = torch.randn(4, 40)
    assert_part_follows(reach(net), reach(model), x)
    assert len(gemm_calls) == 1
    assert quantized_layers(net) == names
    gemm_calls.clear()
    with torch.no_grad():
        reach(model)(x)
    assert not gemm_calls


def test_methods_that_call_submodules_run_quantized(encoder, gemm_calls):
    model, net = encoder
    tokens = torch.randint(0, 20, (2, 5))
    with torch.no_grad():
        got = net.encode(tokens)
        assert_follows(got, make_oracle(model, "mxfp8").encode(tokens), model.encode(tokens))
    assert len(gemm_calls) == 3
    assert quantized_layers(net) == ["layers.0.0", "layers.1.0", "layers.2.0"]


def test_parts_share_weights_and_overrides_with_the_net(gemm_calls, quantized_shapes):
    model = Encoder().eval()
    net = steelyard.compile(model, "mxfp8", overrides={"layers.1.*": None, "heads.large": "nvfp4"})
    tokens, x = torch.randint(0, 20, (2, 5)), torch.randn(4, 40)
    with torch.no_grad():
        net(tokens, "large")
        assert quantized_shapes.count((70, 40)) == 1
        net.heads["large"](x)
        assert gemm_calls[-1][0].scheme.family == "nvfp4"
        gemm_calls.clear()
        # In high precision; activations are those of a kernel of our own.
        torch.testing.assert_close(net.layers[1](x), model.layers[1](x), rtol=1e-5, atol=1e-6)
    assert not gemm_calls
    assert quantized_shapes.count((70, 40)) == 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 40)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_programs_that_quantize_one_weight_in_two_ways_do_not_share_it():
    model = Tied()
    with torch.no_grad():
        # The largest value of a block is just below a power of two: `floor` saturates it, the default does not.
        model.first.weight[:, ::8] = 1.9
    floor = recipes.MXFP8BlockScaling(scale_rule="floor")
    net = steelyard.compile(model, "mxfp8", overrides={"second": floor})
    x = torch.randn(4, 40)
    with torch.no_grad():
        for name, recipe in (("first", recipes.get("mxfp8")), ("second", floor)):
            module = getattr(model, name)
            assert_follows(getattr(net, name)(x), make_oracle(nn.Sequential(module), recipe)(x), module(x))


def test_what_holds_no_matrix_is_the_models_own(encoder):
    model, net = encoder
    assert net.embedding is model.embedding


def test_an_activation_is_computed_as_within_the_net(encoder):
    """By the kernel of the net's programs, so that a model in parts has the bits of the whole."""
    model, net = encoder
    x = torch.randn(64, 40)
    assert net.layers[0][1] is not model.layers[0][1]
    torch.testing.assert_close(net.layers[0][1](x), nn.functional.gelu(x.double()).float(), rtol=1e-6, atol=1e-7)


def test_a_norm_is_computed_as_within_the_net(encoder):
    model, net = encoder
    x = torch.randn(64, 40, requires_grad=True)
    assert net.norm is not model.norm
    expected = nn.functional.layer_norm(x.double(), [40]).float()
    found = net.norm(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(net.norm(x), found)


def test_parts_are_what_the_model_has(encoder):
    model, net = encoder
    part = net.layers[0]
    assert part is net.layers[0]
    assert isinstance(part, nn.Sequential)
    assert isinstance(net.heads["small"], nn.Linear)
    assert net.heads["small"].weight is model.heads["small"].weight
    assert (len(net.layers), len(part), list(net.heads)) == (3, 3, ["small", "large"])
    assert [id(module) for module in net.modules()][1:] == [id(module) for module in model.modules()][1:]
    assert list(net.state_dict()) == list(model.state_dict())
    assert list(part.state_dict()) == list(model.layers[0].state_dict())
    with pytest.raises(IndexError):
        net.layers[3]
    with pytest.raises(KeyError):
        net.heads["medium"]
    with pytest.raises(AttributeError):
        _ = net.decoder


def test_replacing_submodules_through_the_net(encoder, gemm_calls):
    model, net = encoder
    before = net.layers[0]
    replacement = nn.Sequential(nn.Linear(40, 40))
    net.layers[0] = replacement
    assert model.layers[0] is replacement
    assert net.layers[0] is not before
    assert_part_follows(net.layers[0], replacement, torch.randn(4, 40))
    # The model never holds a compiled part.
    net.layers[1] = net.layers[2]
    net.norm = net.heads["small"]
    assert model.layers[1] is model.layers[2]
    assert type(model.norm) is nn.Linear
    gemm_calls.clear()
    with torch.no_grad():
        model.layers[1](torch.randn(4, 40))
    assert not gemm_calls


def test_hooks_and_training_mode_of_a_part_are_the_submodules(encoder):
    model, net = encoder
    seen = []
    net.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(module))
    net.layers[0].train()
    assert model.layers[0].training
    with torch.no_grad():
        model.layers[0](torch.randn(4, 40))
        net.layers[0](torch.randn(4, 40))
    assert len(seen) == 2


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda part: pickle.loads(pickle.dumps(part))])
def test_a_copied_part_is_a_net_of_its_own(duplicate, encoder, gemm_calls):
    model, net = encoder
    twin = duplicate(net.layers[0])
    with torch.no_grad():
        twin[0].weight.zero_()
    assert model.layers[0][0].weight.abs().sum() > 0
    with torch.no_grad():
        twin(torch.randn(4, 40))
    assert len(gemm_calls) == 1


def test_parts_of_llama_and_its_signature(gemm_calls):
    model, arguments = make_llama()
    net = steelyard.compile(model, "mxfp8")
    # Libraries decide by the argument names of a forward what to pass to it.
    assert inspect.signature(net.forward) == inspect.signature(model.forward)
    with torch.no_grad():
        got = net.model(**arguments).last_hidden_state
        assert_follows(
            got, make_oracle(model, "mxfp8").model(**arguments).last_hidden_state, model.model(**arguments)[0]
        )
        assert len(gemm_calls) == 14
        net.model.layers[1].mlp(got)
    assert len(gemm_calls) == 17
    assert quantized_layers(net)[-1] == "model.layers.1.mlp.down_proj"


def test_a_forward_that_an_instance_has_of_its_own_is_compiled(gemm_calls):
    model, arguments = make_mlp()
    x = arguments["input"]
    net, oracle = steelyard.compile(model, "mxfp8"), make_oracle(model, "mxfp8")
    model.forward = functools.partial(lambda forward, x: -forward(x), model.forward)
    with torch.no_grad():
        assert_follows(net(x), -oracle(x), model(x))
    assert len(gemm_calls) == 3
    del model.forward
    with torch.no_grad():
        assert_follows(net(x), oracle(x), model(x))
    assert len(gemm_calls) == 6


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(40, 40)

    def forward(self, x, depth):
        x = torch.relu(self.linear(x))
        if depth > 1:
            return self.forward(x, depth - 1)
        return self(x, depth - 1) if depth else x


def test_a_forward_that_calls_itself(gemm_calls):
    model = Recursive()
    net = steelyard.compile(model, "mxfp8")
    x = torch.randn(4, 40)
    with torch.no_grad():
        assert_follows(net(x, 3), make_oracle(model, "mxfp8")(x, 3), model(x, 3))
    assert len(gemm_calls) == 4
