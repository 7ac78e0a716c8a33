"""CUDA graphs of compiled nets on a mock GPU: captured work runs only when it is replayed, as often as it is."""

import copy
import shutil
import weakref

import pytest
import torch
from mock_gpu import MockGpus, mock_gpus, reference_gemms
from mock_schedules import FreesFirst
from torch import nn

import steelyard
from steelyard.runtime import weights
from steelyard.runtime.cuda.streams import is_capturing
from steelyard.runtime.weights import _Kept

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

GPU = torch.device("cpu", 0)
TARGETS = ["sm_100a", "sm_100a"]
REPLAYS = 2


@pytest.fixture(autouse=True)
def _fresh_capture():
    yield
    torch._dynamo.reset()


def make_model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16)), torch.randn(3, 32)


def step(net: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    y = net(x)
    y.square().sum().backward()
    optimizer.step()
    return y


def results_of(net: nn.Module, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": y.detach().clone()} | {name: tensor.clone() for name, tensor in net.state_dict().items()}


def wrong(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


@pytest.mark.parametrize(
    "recipe", ["fp8-delayed", *(pytest.param(r, marks=pytest.mark.slow) for r in ("mxfp8", "nvfp4"))]
)
def test_a_training_step_that_is_replayed(monkeypatch, library, recipe):
    model, x = make_model()
    with reference_gemms(monkeypatch):
        torch.manual_seed(7)
        net = steelyard.compile(copy.deepcopy(model), recipe)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(1 + REPLAYS):
            y = step(net, x, optimizer)
        expected = results_of(net, y)
    torch._dynamo.reset()
    with mock_gpus(monkeypatch, library, TARGETS) as gpus:
        torch.manual_seed(7)
        net, x = steelyard.compile(model.to(GPU), recipe, target="cuda"), x.to(GPU)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        step(net, x, optimizer)
        with gpus.streams.capture() as graph:
            y = step(net, x, optimizer)
        for _ in range(REPLAYS):
            graph.replay(gpus.streams.current)
        found = results_of(net, y)
    assert wrong(found, expected) == []


class Forward:
    """A forward without gradients that was captured, between calls that were not."""

    def __init__(self, gpus: MockGpus, model: nn.Module, x: torch.Tensor, *, is_cold: bool = False):
        self._stream, self._x = gpus.streams.current, x.to(GPU)
        self.net = steelyard.compile(model.to(GPU), "mxfp8", target="cuda")
        self.call()
        if is_cold:
            self.net.requantize()
        with torch.no_grad(), gpus.streams.capture() as self._graph:
            self._y = self.net(self._x)

    def call(self) -> torch.Tensor:
        with torch.no_grad():
            return self.net(self._x)

    def replay(self) -> torch.Tensor:
        self._graph.replay(self._stream)
        return self._y.clone()

    def write_parameters(self) -> None:
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.mul_(2)


def expected_of(monkeypatch, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with reference_gemms(monkeypatch), torch.no_grad():
        return steelyard.compile(copy.deepcopy(model), "mxfp8")(x)


def forget_captured(patch) -> None:
    patch.setattr(weights.Weights, "_captured", property(lambda own: [], lambda own, value: None), raising=False)


def keep_captured(patch) -> None:
    make = weights.Weights.get

    def get(own, weight, sources):
        parts = make(own, weight, sources)
        parameter = sources[0]
        if weights.is_capturing(parameter.device):
            stamp = (None if not parameter.requires_grad else weights._optimizer_steps, *weights._stamp(parameter))
            own._kept[weight.key, id(parameter)] = _Kept(parts, stamp, weakref.ref(parameter), [])
        return parts

    patch.setattr(weights.Weights, "get", get)


@pytest.mark.parametrize("plant", [None, forget_captured])
def test_a_graph_reads_the_weights_that_it_captured(monkeypatch, library, plant):
    """They live on when the parameters are written; what is no weight is read as it is now."""
    model, x = make_model()
    model[0].bias = model[2].bias = None  # pyright: ignore
    expected = expected_of(monkeypatch, model, x)
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in doubled.parameters():
            parameter.mul_(2)
    expected_then = expected_of(monkeypatch, doubled, x)
    torch._dynamo.reset()
    with mock_gpus(monkeypatch, library, TARGETS, FreesFirst()) as gpus, monkeypatch.context() as patch:
        if plant is not None:
            plant(patch)
        forward = Forward(gpus, model, x)
        forward.write_parameters()
        called, replayed = forward.call(), forward.replay()
    assert torch.equal(called, expected_then)
    assert torch.equal(replayed, expected) == (plant is None)


@pytest.mark.parametrize("plant", [None, keep_captured])
def test_what_a_graph_makes_is_for_its_replays(monkeypatch, library, plant):
    """A weight that is first quantized in a capture holds nothing before a replay: a call makes its own."""
    model, x = make_model()
    expected = expected_of(monkeypatch, model, x)
    torch._dynamo.reset()
    with mock_gpus(monkeypatch, library, TARGETS, FreesFirst()) as gpus, monkeypatch.context() as patch:
        if plant is not None:
            plant(patch)
        forward = Forward(gpus, model, x, is_cold=True)
        called, replayed = forward.call(), forward.replay()
    assert torch.equal(replayed, expected)
    assert torch.equal(called, expected) == (plant is None)


def test_a_capture_is_of_one_device(monkeypatch, library):
    """Whichever device is current."""
    with mock_gpus(monkeypatch, library, TARGETS) as gpus:
        devices = [torch.device("cpu", index) for index in range(2)]
        for current in (0, 1):
            with gpus.streams.capture(), gpus.streams.use_device(current):
                assert [is_capturing(device) for device in devices] == [True, False]
                assert gpus.streams.device == current


@pytest.mark.slow
def test_replays_write_parameters_without_a_trace(monkeypatch, library):
    """So kept weights are those of before, until the user says that they are outdated."""
    model, x = make_model()
    with mock_gpus(monkeypatch, library, TARGETS) as gpus:
        net, given = steelyard.compile(model.to(GPU), "mxfp8", target="cuda"), x.to(GPU)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        step(net, given, optimizer)
        with gpus.streams.capture() as graph:
            step(net, given, optimizer)

        def call() -> torch.Tensor:
            with torch.no_grad():
                return net(given)

        graph.replay(gpus.streams.current)
        call()
        graph.replay(gpus.streams.current)
        outdated = call()
        net.requantize()
        found = call()
    torch._dynamo.reset()
    expected = expected_of(monkeypatch, model, x)
    assert torch.equal(found, expected)
    assert not torch.equal(outdated, expected)
