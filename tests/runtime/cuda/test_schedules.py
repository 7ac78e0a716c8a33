"""Whole programs on several streams of a mock GPU, under schedules that are as bad as their order allows.

A program waits where one of eager torch would have to. Its results are those of the CPU, whatever the schedule.
"""

import copy
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from mock_gpu import mock_gpu, reference_gemms
from mock_schedules import FreesFirst, Schedule, Seeded
from mock_streams import Stream, Streams
from torch import nn

import steelyard

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

Results = dict[str, torch.Tensor]
STEPS = 3


@pytest.fixture(autouse=True)
def _fresh_capture():
    yield
    torch._dynamo.reset()


class Lanes:
    """Two streams that a program uses; on the CPU there are none, and everything runs in order."""

    def __init__(self, streams: Streams | None = None):
        self._streams = streams
        self._main: Stream | None = None if streams is None else streams.current
        self._side: Stream | None = None if streams is None else streams.make()

    def on_side(self) -> AbstractContextManager:
        return nullcontext() if self._streams is None or self._side is None else self._streams.use(self._side)

    def side_waits(self, *used: torch.Tensor) -> None:
        """The side stream may use what the main one made."""
        self._wait(self._side, self._main, used)

    def main_waits(self, *used: torch.Tensor) -> None:
        self._wait(self._main, self._side, used)

    def _wait(self, waiting: Stream | None, other: Stream | None, used: tuple) -> None:
        if waiting is None or other is None:
            return
        waiting.wait_stream(other)
        for tensor in used:
            tensor.record_stream(waiting)


def evaluate_beside_training(net: nn.Module, x: torch.Tensor, lanes: Lanes) -> Results:
    """The side stream evaluates while the main one trains; it waits before it writes parameters, and no earlier."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    found = {}
    for step in range(STEPS):
        lanes.side_waits()
        with lanes.on_side(), torch.no_grad():
            found[f"evaluated{step}"] = net((2 + step) * x)
        y = net(x)
        y.square().sum().backward()
        lanes.main_waits()
        optimizer.step()
        optimizer.zero_grad()
        found[f"y{step}"] = y.detach()
    return found


def forward_on_the_side(net: nn.Module, x: torch.Tensor, lanes: Lanes) -> Results:
    """The side stream runs forwards, so that autograd runs the backwards there, and the main one updates parameters."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    found = {}
    for step in range(STEPS):
        lanes.side_waits()
        with lanes.on_side():
            y = net((1 + step) * x)
        lanes.main_waits(y)
        y.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found[f"y{step}"] = y.detach()
    return found


def two_forwards_then_backwards(net: nn.Module, x: torch.Tensor, lanes: Lanes) -> Results:
    """Two streams call one net for training, and neither waits for the other: nobody writes a parameter."""
    first = net(x)
    lanes.side_waits()
    with lanes.on_side():
        second = net(3 * x)
    third = net(2 * x)
    lanes.main_waits(second)
    sum(y.square().sum() for y in (first, second, third)).backward()  # pyright: ignore[reportAttributeAccessIssue]
    gradients = {f"{name}.grad": p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    return gradients | {"first": first.detach(), "second": second.detach(), "third": third.detach()}


PROGRAMS = [evaluate_beside_training, forward_on_the_side, two_forwards_then_backwards]
TARGETS = {
    "mxfp8": "sm_90a",
    "fp8-delayed": "sm_90a",
    "fp8-current": "sm_100a",
    "fp8-block": "sm_90a",
    "nvfp4": "sm_100a",
}


class Subject:
    """A net that is compiled once, and what a program makes of it on the CPU."""

    def __init__(self, monkeypatch, program: Callable, recipe: str):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(48, 40), nn.GELU(), nn.Linear(40, 16))
        self.x = torch.randn(5, 48)
        self._program, self.target = program, TARGETS[recipe]
        self.net = steelyard.compile(copy.deepcopy(model), recipe, target=f"cuda:{self.target}")
        with reference_gemms(monkeypatch):
            net = steelyard.compile(model, recipe)
            self._before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            self._expected = self._run(net, Lanes())

    def _run(self, net: nn.Module, lanes: Lanes) -> Results:
        torch.manual_seed(7)
        net.load_state_dict(self._before)
        net._steelyard.backend.state.tensors.clear()  # pyright: ignore
        found = self._program(net, self.x, lanes)
        return found | {name: tensor.clone() for name, tensor in net.state_dict().items()}

    def wrong(self, monkeypatch, library, schedule: Schedule) -> list[str]:
        """The results that differ from the CPU's."""
        with mock_gpu(monkeypatch, library, self.target, schedule=schedule) as gpu:
            found = self._run(self.net, Lanes(gpu.heap.streams))
        assert found.keys() == self._expected.keys()
        return [name for name, tensor in self._expected.items() if not torch.equal(found[name], tensor)]


def schedules(seeds: int) -> list[Schedule]:
    return [Schedule(), FreesFirst(), *(Seeded(seed) for seed in range(seeds))]


@pytest.mark.parametrize("recipe", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_no_schedule_changes_a_result(monkeypatch, library, program, recipe):
    subject = Subject(monkeypatch, program, recipe)
    wrong = {schedule.name: subject.wrong(monkeypatch, library, schedule) for schedule in schedules(3)}
    assert not any(wrong.values()), wrong
