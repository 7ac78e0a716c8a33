"""Nets on several mock GPUs: weights, state and launches stay on the device of their tensors."""

import copy
import shutil
import threading
from collections.abc import Callable

import pytest
import torch
from mock_gpu import MockGpus, mock_gpus, reference_gemms
from ptx_text import PtxError
from torch import nn

import steelyard
from steelyard.errors import TargetError
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.devices import kernels_on
from steelyard.runtime.state import State

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

FIRST, SECOND = torch.device("cpu", 0), torch.device("cpu", 1)


@pytest.fixture(autouse=True)
def _fresh_capture():
    yield
    torch._dynamo.reset()


def slow(*values: str) -> list:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def make_part(inputs: int, outputs: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, outputs))


def train(nets: list[nn.Module], x: torch.Tensor, move: Callable, steps: int = 2) -> dict[str, torch.Tensor]:
    """Training steps of nets one after the other; `move` puts what one made where the next one is."""
    parameters = [parameter for net in nets for parameter in net.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    found = {}
    for step in range(steps):
        optimizer.zero_grad()
        y = x
        for net in nets:
            y = net(move(y, net))
        y.square().sum().backward()
        optimizer.step()
        found[f"y{step}"] = y.detach()
    for number, net in enumerate(nets):
        found |= {f"{number}.{name}": tensor.clone() for name, tensor in net.state_dict().items()}
    return found


def stay(y: torch.Tensor, _net: nn.Module) -> torch.Tensor:
    return y


class Moved(torch.autograd.Function):
    """What `.to` does between GPUs; for CPU tensors, torch takes the gradient to be where it must be."""

    @staticmethod
    def forward(context, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        context.device = x.device
        return x.to(device)

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> tuple:
        return gradient.to(context.device), None


def follow(y: torch.Tensor, net: nn.Module) -> torch.Tensor:
    return Moved.apply(y, next(net.parameters()).device)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def places_of(net: nn.Module) -> set[torch.device]:
    """Where the parameters and the state of a net are."""
    return {tensor.device for tensor in net.state_dict().values()}


@pytest.mark.parametrize("recipe", ["mxfp8", *slow("nvfp4", "fp8-delayed")])
def test_a_model_split_over_two_devices(monkeypatch, library, recipe):
    """Part by part, with different architectures: `cuda` is that of each part's own device."""
    parts, x = [make_part(32, 20), make_part(20, 16, 1)], torch.randn(5, 32)
    with reference_gemms(monkeypatch):
        torch.manual_seed(7)
        expected = train([steelyard.compile(copy.deepcopy(part), recipe) for part in parts], x, stay)
    torch._dynamo.reset()
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_100a"]) as gpus:
        torch.manual_seed(7)
        moved = [copy.deepcopy(part).to(place) for part, place in zip(parts, (FIRST, SECOND), strict=True)]
        nets = [steelyard.compile(part, recipe, target="cuda") for part in moved]
        found = train(nets, x.to(FIRST), follow)
        assert [places_of(net) for net in nets] == [{FIRST}, {SECOND}]
    assert_same(found, expected)
    assert_architectures(gpus, ["sm_90a", "sm_100a"])


def assert_architectures(gpus: MockGpus, targets: list[str]) -> None:
    """Every device was given code for its own architecture, and launched it."""
    loaded = {(device, text.split(".target ")[1].split()[0]) for device, text in gpus.driver.loaded}
    assert loaded == set(enumerate(targets))
    assert all(launcher.launches for launcher in gpus.launchers)


@pytest.mark.parametrize("recipe", ["fp8-delayed", *slow("mxfp8", "nvfp4")])
def test_a_copy_of_a_net_on_another_device(monkeypatch, library, recipe):
    """Called in turn, each keeps its own weights and state, which start as they were when it was copied."""
    part, x = make_part(32, 16), torch.randn(5, 32)

    def run(place: Callable, target: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(7)
        net = steelyard.compile(copy.deepcopy(part).to(place(0)), recipe, target=target)
        net(x.to(place(0))).sum().backward()
        nets = [net, copy.deepcopy(net).to(place(1))]
        found = {}
        for step in range(2):
            for number, one in enumerate(nets):
                y = one((1 + number + step) * x.to(place(number)))
                y.square().sum().backward()
                found[f"y{step}{number}"] = y.detach()
        for number, one in enumerate(nets):
            found |= {f"{number}.{name}": tensor for name, tensor in one.state_dict().items()}
            found |= {f"{number}.{name}.grad": p.grad for name, p in one.named_parameters()}
            assert places_of(one) == {place(number)}
        return found

    with reference_gemms(monkeypatch):
        expected = run(lambda _: torch.device("cpu"), "cpu")
    torch._dynamo.reset()
    with mock_gpus(monkeypatch, library, ["sm_100a", "sm_100a"]) as gpus:
        found = run(lambda number: torch.device("cpu", number), "cuda")
    assert_same(found, expected)
    assert all(launcher.launches for launcher in gpus.launchers)


def test_a_net_per_device_and_thread(monkeypatch, library):
    part, x = make_part(32, 16), torch.randn(5, 32)
    inputs = [(1 + step) * x for step in range(3)]
    with reference_gemms(monkeypatch), torch.no_grad():
        net = steelyard.compile(copy.deepcopy(part), "mxfp8")
        expected = [net(given) for given in inputs]
    torch._dynamo.reset()
    found: dict[int, list[torch.Tensor]] = {}
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]) as gpus:
        net = steelyard.compile(copy.deepcopy(part).to(FIRST), "mxfp8", target="cuda")
        nets = [net, copy.deepcopy(net).to(SECOND)]

        def work(number: int) -> None:
            # The current device is the other one.
            with gpus.heap.in_thread(), gpus.streams.use_device(1 - number), torch.no_grad():
                found[number] = [nets[number](given.to(torch.device("cpu", number))) for given in inputs]

        with torch.no_grad():
            nets[0](x.to(FIRST)), nets[1](x.to(SECOND))
        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in (0, 1):
        assert all(torch.equal(y, z) for y, z in zip(found[number], expected, strict=True))


def test_one_graph_with_tensors_on_two_devices(monkeypatch, library):
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]), torch.no_grad():
        net = steelyard.compile(make_part(32, 16).to(FIRST), "mxfp8", target="cuda")
        message = "one GPU, got tensors on cpu:0 and cpu:1; compile the part on each by itself"
        with pytest.raises(TargetError, match=message):
            net(torch.randn(5, 32, device=SECOND))


class Positions(nn.Module):
    """Makes a tensor on its own device, and one on the host."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, x):
        counted = torch.arange(16, device="cpu")
        return self.layer(x) + torch.arange(16, device=x.device), counted


def test_tensors_that_a_graph_makes_are_where_it_says(monkeypatch, library):
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]), torch.no_grad():
        net = steelyard.compile(Positions().to(SECOND), "mxfp8", target="cuda")
        made = net(torch.randn(5, 32, device=SECOND))
        assert [tensor.device for tensor in made] == [SECOND, torch.device("cpu")]
        assert made[1].tolist() == list(range(16))


class Plants:
    """Errors of the host, by what the mock says to them."""

    @staticmethod
    def another_context(patch, launchers: list) -> None:
        patch.setattr(launchers[1]._launch, "_context", launchers[0]._launch._context)

    @staticmethod
    def another_stream(patch, launchers: list) -> None:
        patch.setattr(launchers[1]._launch, "_stream", launchers[0]._launch._stream)

    @staticmethod
    def another_module(patch, launchers: list) -> None:
        patch.setattr(launchers[1]._launch, "_functions", launchers[0]._launch._functions)

    @staticmethod
    def another_launcher(patch, launchers: list) -> None:
        patch.setattr(launchers[1], "_launch", launchers[0]._launch)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (None, None),
        (Plants.another_context, "CUDA_ERROR_INVALID_HANDLE"),
        (Plants.another_stream, "CUDA_ERROR_INVALID_HANDLE"),
        (Plants.another_module, "CUDA_ERROR_INVALID_HANDLE"),
        (Plants.another_launcher, "memory"),
    ],
)
def test_what_belongs_to_another_device_is_refused(monkeypatch, library, plant, message):
    """Contexts, streams, modules and memory."""
    scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]) as gpus, monkeypatch.context() as patch:

        def quantize(place: torch.device) -> torch.Tensor:
            x = torch.ones(8, 32, device=place)
            copied, _ = kernels_on(place).quantize(x, scheme, None)
            gpus.streams.synchronize()
            assert copied is not None
            return copied.codes

        quantize(FIRST)
        if plant is None:
            # 448 of E4M3, under a scale of 2^-8.
            assert torch.equal(quantize(SECOND), torch.full((8, 32), 0x78, dtype=torch.uint8, device=SECOND))
            return
        plant(patch, gpus.launchers)
        with pytest.raises((TargetError, PtxError), match=message):
            quantize(SECOND)


def call_a_copy(monkeypatch, library) -> None:
    """A copy of a net on another device, called after the net itself."""
    with mock_gpus(monkeypatch, library, ["sm_90a", "sm_90a"]), torch.no_grad():
        x = torch.randn(5, 32)
        net = steelyard.compile(make_part(32, 16).to(FIRST), "fp8-delayed", target="cuda")
        net(x.to(FIRST))
        copy.deepcopy(net).to(SECOND)(x.to(SECOND))


def test_state_on_another_device_is_noticed(monkeypatch, library):
    """Should a net not move its state to the device of a copy, its kernels find no memory there."""
    call_a_copy(monkeypatch, library)
    monkeypatch.setattr(State, "get_on", _get_on_the_first)
    with pytest.raises(PtxError, match="memory"):
        call_a_copy(monkeypatch, library)


def _get_on_the_first(state: State, _device: torch.device, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    state.tensors[name] = state.get(name, shape).to(FIRST)
    return state.tensors[name]
