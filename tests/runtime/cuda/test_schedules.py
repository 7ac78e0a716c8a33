"""Whole programs on several streams of a mock GPU, under schedules that are as bad as their order allows.

A program waits where one of eager torch would have to. Its results are those of the CPU, whatever the schedule.
"""

import copy
import itertools
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from mock_gpu import mock_gpu, reference_gemms
from mock_schedules import FreesFirst, Schedule, Seeded
from mock_streams import Stream, Streams
from torch import nn

import steelyard
from steelyard.runtime.arena import Arena, Arenas
from steelyard.runtime.cuda.streams import Moment
from steelyard.runtime.state import State

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

Results = dict[str, torch.Tensor]
STEPS = 2


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


def quantize_again_beside_evaluation(net: nn.Module, x: torch.Tensor, lanes: Lanes) -> Results:
    """The main stream replaces weights that the side stream still reads."""
    with torch.no_grad():
        found = {"before": net(x)}
        with lanes.on_side():
            found["beside"] = net(2 * x)
        net.requantize()  # pyright: ignore[reportCallIssue]
        found["after"] = net(3 * x)
        lanes.main_waits(found["beside"])
    return found


PROGRAMS = [
    evaluate_beside_training,
    forward_on_the_side,
    two_forwards_then_backwards,
    quantize_again_beside_evaluation,
]
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
        model = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 16))
        self.x = torch.randn(3, 32)
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


ALL = list(itertools.product(PROGRAMS, TARGETS))


def names(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "recipe"), ALL, ids=names)
def test_many_schedules(monkeypatch, library, program, recipe):
    check(Subject(monkeypatch, program, recipe), monkeypatch, library, 12)


def test_a_backward_on_another_stream_than_its_caller(monkeypatch, library):
    check(Subject(monkeypatch, forward_on_the_side, "mxfp8"), monkeypatch, library, 0)


def check(subject: "Subject", monkeypatch, library, seeds: int) -> None:
    """No schedule changes a result."""
    wrong = {schedule.name: subject.wrong(monkeypatch, library, schedule) for schedule in schedules(seeds)}
    assert not any(wrong.values()), wrong


def wait_for_nothing(moment: Moment, tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def record_nothing(moment: Moment, tensors: Iterable[torch.Tensor]) -> None:
    torch.cuda.current_stream(moment._device).wait_event(moment._event)


def keep_one_block(arenas: Arenas, device: torch.device) -> Arena:
    if not arenas._free:
        arenas._free.append(Arena(arenas._size, arenas._places, device))
    return arenas._free[0]


PLANTS = {
    (evaluate_beside_training, "fp8-delayed"): {
        "streams do not wait": (Moment, "wait", wait_for_nothing),
        "streams do not wait for state": (State, "begin_use", lambda *_: None),
        "nobody knows who used state": (State, "end_use", lambda *_: None),
    },
    (quantize_again_beside_evaluation, "mxfp8"): {
        "streams do not wait": (Moment, "wait", wait_for_nothing),
        "memory does not wait": (Moment, "wait", record_nothing),
        "calls share their memory": (Arenas, "make", keep_one_block),
    },
}


@pytest.mark.every(8)
@pytest.mark.parametrize(("program", "recipe"), PLANTS, ids=names)
def test_planted_errors_are_noticed(monkeypatch, library, program, recipe):
    subject = Subject(monkeypatch, program, recipe)
    check(subject, monkeypatch, library, 1)
    for plant, change in PLANTS[program, recipe].items():
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            assert any(subject.wrong(monkeypatch, library, schedule) for schedule in schedules(8)), plant
