"""A frozen net computes what its net computes, and refuses whatever it was not frozen for."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import steelyard
from steelyard.errors import TargetError, UnsupportedModelError


def make_model(layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(layers))).eval()


class Decoder(nn.Module):
    """A model with several arguments, one of which it writes, that returns a dict."""

    def __init__(self):
        super().__init__()
        self.project, self.mix = nn.Linear(32, 32), nn.Linear(32, 32, bias=False)
        self.register_buffer("offset", torch.full((32,), 0.5))

    def forward(self, x, cache, position, *, scale=1.0, names=None):
        cache.index_copy_(0, position, self.project(x) + self.offset)
        mixed = self.mix(cache) * scale
        return {"mixed": mixed, "pair": (mixed.sum(), x), "names": names}


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["fp8-current", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4", "nvfp4/none"])
@pytest.mark.parametrize("weights", ["cached", "quantized"])
def test_a_frozen_net_has_the_bits_of_its_net(recipe, weights):
    net = steelyard.compile(make_model(), recipe, weights=weights)
    x, other = torch.randn(2, 5, 48)
    frozen = net.freeze(x)
    with torch.no_grad():
        assert torch.equal(frozen(other), net(other))
        assert torch.equal(frozen(x), net(x))


def test_a_net_of_many_blocks_is_one_program():
    model = make_model(layers=6)
    x = torch.randn(3, 48)
    net = steelyard.compile(model, "mxfp8")
    frozen = net.freeze(x)
    with torch.no_grad():
        assert torch.equal(frozen(x), net(x))


def test_arguments_are_written_and_results_have_the_structure_of_the_nets():
    torch.manual_seed(0)
    net = steelyard.compile(Decoder().eval(), "mxfp8")
    x, cache, position = torch.randn(1, 32), torch.randn(4, 32), torch.tensor([2])
    before = cache.clone()
    frozen = net.freeze(x, cache, position, scale=2.0, names=["a", None])
    assert torch.equal(cache, before), "freezing leaves the example arguments alone"

    own = torch.randn(4, 32)
    nets = own.clone()
    with torch.no_grad():
        expected = net(x, nets, position, scale=2.0, names=["a", None])
    found = frozen(x, own, position, scale=2.0, names=["a", None])
    assert torch.equal(own, nets)
    assert list(found) == ["mixed", "pair", "names"]
    assert torch.equal(found["mixed"], expected["mixed"])
    assert torch.equal(found["pair"][0], expected["pair"][0])
    assert found["pair"][1] is x
    assert found["names"] == ["a", None]


def test_weights_are_those_that_were_there():
    model = make_model()
    net, x = steelyard.compile(model, "mxfp8"), torch.randn(3, 48)
    frozen = net.freeze(x)
    before = frozen(x)
    with torch.no_grad():
        model[0][0].weight.mul_(2)
        assert not torch.equal(net(x), before)
    assert torch.equal(frozen(x), before)


def test_gradients_and_autocast_around_a_call_change_nothing():
    net, x = steelyard.compile(make_model(), "mxfp8"), torch.randn(3, 48)
    frozen = net.freeze(x)
    expected = frozen(x)
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        found = frozen(x.requires_grad_())
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_state_moves_with_calls_and_not_with_freezing():
    recipe = steelyard.recipes.Float8CurrentScaling(input_scales={"0.0": 0.001})
    net = steelyard.compile(make_model(), recipe)
    x = torch.full((2, 48), 3.0)
    with torch.no_grad():
        net(x)
    count = "_steelyard.0.0.input.saturated"
    before = net.state_dict()[count].item()
    frozen = net.freeze(x)
    assert before == 96
    assert net.state_dict()[count].item() == before
    frozen(x)
    assert net.state_dict()[count].item() == 2 * before


def test_a_frozen_net_needs_no_net():
    net, x = steelyard.compile(make_model(), "nvfp4"), torch.randn(3, 48)
    frozen = net.freeze(x)
    expected, gone = frozen(x), weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert torch.equal(frozen(x), expected)


def test_threads_share_a_frozen_net():
    net = steelyard.compile(make_model(), "nvfp4")
    inputs = torch.randn(8, 3, 48)
    frozen = net.freeze(inputs[0])
    expected = [frozen(x) for x in inputs]
    wrong = []

    def check(number: int) -> None:
        for _ in range(50):
            if not torch.equal(frozen(inputs[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=check, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (torch.zeros(4, 48), r"argument 0 .* shape \(3, 48\) .* got a CPU tensor .* shape \(4, 48\)"),
        (torch.zeros(3, 48, dtype=torch.float64), "torch.float32 .* got a CPU tensor of torch.float64"),
        (torch.zeros(48, 3).t(), r"strides \(48, 1\), got .* strides \(1, 3\); freeze the net for such arguments"),
        (torch.zeros(3, 48, device="meta"), "must be a CPU tensor"),
        (1.0, "must be a CPU tensor .* got 1.0"),
        ([torch.zeros(3, 48)], r"must be a CPU tensor .* got \[tensor|must be a CPU tensor .* got a list"),
    ],
)
def test_other_arguments_are_refused(argument, message):
    frozen = steelyard.compile(make_model(), "mxfp8").freeze(torch.zeros(3, 48))
    with pytest.raises(UnsupportedModelError, match=message):
        frozen(argument)


def test_other_numbers_are_refused():
    net = steelyard.compile(Decoder().eval(), "mxfp8")
    given = torch.randn(1, 32), torch.randn(4, 32), torch.tensor([2])
    frozen = net.freeze(*given, scale=2.0)
    with pytest.raises(UnsupportedModelError, match=r"argument 3 of a frozen net must be 2\.0, got 3\.0"):
        frozen(*given, scale=3.0)
    with pytest.raises(UnsupportedModelError, match="takes arguments as it was frozen for"):
        frozen(*given)


class Broken(nn.Module):
    """A model of two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class Late(nn.Module):
    """A model that computes something after its graph."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(32, 32)

    def forward(self, x):
        y = self.only(x)
        torch._dynamo.graph_break()
        return torch.from_numpy(y.numpy() * 2)


class View(nn.Module):
    """A model that returns a view of its argument."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(32, 32)

    def forward(self, x):
        return self.only(x), x[:1]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Broken(), "must be one graph, and 2 ran; net.explain"),
        (Late(), "one graph|made after"),
        (View(), "views of them"),
    ],
    ids=["two-graphs", "late", "view"],
)
def test_a_model_that_is_not_one_graph_is_refused(model, message):
    net = steelyard.compile(model.eval(), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=message):
        net.freeze(torch.randn(2, 32))


def test_what_cannot_be_frozen_is_refused_before_anything_is_compiled():
    model, x = make_model(), torch.randn(3, 48)
    net = steelyard.compile(model, "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"training mode; call net\.eval\(\) first"):
        net.train().freeze(x)
    net.eval()
    with pytest.raises(UnsupportedModelError, match="0 is a part of a net"):
        net[0].freeze(x)
    with pytest.raises(TargetError, match="must be compiled for the CPU, got target cuda:sm_90a"):
        steelyard.compile(model, "mxfp8", target="cuda:sm_90a").freeze(x)
    with pytest.raises(UnsupportedModelError, match="got <object object"):
        net.freeze(object())
