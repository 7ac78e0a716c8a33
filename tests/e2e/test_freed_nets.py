"""Dropping a net frees it, its model, its programs and its MLIR contexts."""

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from breaking_models import Pairs
from torch import nn
from torch_mlir import ir

import steelyard
from steelyard.dialect.remembered import forget
from steelyard.errors import UnsupportedModelError


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.fixture(autouse=True, scope="module")
def _younger_objects_only():
    """Let collections look at what these tests make, and not at all that other tests and libraries left."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    # What torch keeps in C++ goes one layer at a time.
    for _ in range(4):
        gc.collect()


def infer(net) -> None:
    with torch.no_grad():
        net(torch.randn(4, 64))


def train(net) -> None:
    net(torch.randn(4, 64)).sum().backward()


def inspect(net) -> None:
    net.lower(torch.randn(4, 64))
    net.explain()
    net.ir("fused")
    net.memory()


def copy_it(net) -> None:
    infer(copy.deepcopy(net))


def call_a_part(net) -> None:
    infer(net.first)


def save(net) -> None:
    infer(net)
    net.load_state_dict(net.state_dict())


def assign_a_forward(net) -> None:
    plain = net.model.forward
    net.model.forward = lambda x: plain(x)
    infer(net)


def fail(net) -> None:
    with pytest.raises(UnsupportedModelError):
        net(torch.randn(4, 63))


USES: list[Callable] = [infer, train, inspect, copy_it, call_a_part, save, assign_a_forward, fail]


def parts_of(net: Any) -> list[weakref.ref]:
    backend = net._steelyard.backend
    programs = [weakref.ref(compilation.program) for compilation in backend.compilations]
    return [weakref.ref(net), weakref.ref(net.model), weakref.ref(backend), *programs]


def use_and_drop(make: Callable[[], nn.Module], use: Callable, **options) -> list[weakref.ref]:
    net = steelyard.compile(make(), options.pop("recipe", "mxfp8"), **options)
    use(net)
    return parts_of(net)


def check_freed(references: list[weakref.ref]) -> None:
    collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_a_net_that_was_never_called():
    check_freed(use_and_drop(Two, lambda net: None))


@pytest.mark.every(3)
@pytest.mark.parametrize("use", USES)
def test_a_net_however_it_was_used(use):
    check_freed(use_and_drop(Two, use))


@pytest.mark.parametrize("use", [infer, train])
@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
def test_a_net_with_state(recipe, use):
    check_freed(use_and_drop(Two, use, recipe=recipe))


def test_a_net_with_quantized_parameters():
    check_freed(use_and_drop(Two, infer, weights="quantized"))


class Repeated(nn.Module):
    """Enough blocks that are alike for the net to be cut."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def reset_torch(net) -> None:
    train(net)
    torch._dynamo.reset()
    train(net)


def replace_a_block(net) -> None:
    infer(net)
    net.model.blocks[1] = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64))
    infer(net)


@pytest.mark.every(3)
@pytest.mark.parametrize("use", [infer, train, inspect, copy_it, reset_torch, replace_a_block])
def test_a_net_that_is_cut_into_blocks(use):
    net = steelyard.compile(Repeated(), "fp8-delayed")
    use(net)
    assert net._steelyard.backend.blocks is not None
    backend = net._steelyard.backend
    captures = [weakref.ref(captured.frames) for captured in backend.block_captures.values()]
    assert captures or use is copy_it
    references = parts_of(net) + captures + [weakref.ref(net.blocks[0]), weakref.ref(net.model.blocks[0])]
    del net, backend
    check_freed(references)


@pytest.mark.parametrize("make", [Pairs, lambda: nn.Linear(64, 64), lambda: nn.LSTM(64, 64)])
def test_what_torch_keeps_in_functions_that_nets_share(make):
    check_freed(use_and_drop(make, infer))


def test_a_class_that_was_made_for_one_model():
    def make() -> nn.Module:
        return type("Own", (Two,), {})()

    net = steelyard.compile(make(), "mxfp8")
    infer(net)
    references = [weakref.ref(type(net)), weakref.ref(type(net.model))]
    del net
    check_freed(references)


def test_a_net_stays_compiled_when_another_of_its_class_is_freed():
    kept, dropped = (steelyard.compile(Pairs(), "mxfp8") for _ in range(2))
    infer(dropped)
    infer(kept)
    graphs = kept._steelyard.backend.graphs
    references = parts_of(dropped)
    del dropped
    check_freed(references)
    infer(kept)
    assert kept._steelyard.backend.graphs == graphs


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("make", "recipe"),
    [(Two, "mxfp8"), (Two, "fp8-delayed"), (Two, "nvfp4"), (Pairs, "fp8-delayed"), (Repeated, "fp8-delayed")],
)
def test_a_backward_outlives_its_net(make, recipe):
    def gradients(*, drop: bool) -> list:
        torch.manual_seed(0)
        model, x = make(), torch.randn(4, 64)
        net = steelyard.compile(model, recipe)
        loss = net(x).square().sum()
        if drop:
            reference = weakref.ref(net)
            del net
            collect()
            assert reference() is None
        loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    for left, right in zip(gradients(drop=True), gradients(drop=False), strict=True):
        assert torch.equal(left, right)


def live_contexts() -> int:
    forget()
    collect()
    return ir.Context._get_live_count()  # pyright: ignore[reportAttributeAccessIssue]


def test_contexts_do_not_pile_up_even_while_nets_live():
    before = live_contexts()
    nets = [steelyard.compile(Two(), "mxfp8") for _ in range(4)]
    for net in nets:
        train(net)
        inspect(net)
    # The dialect itself keeps the context that was made last.
    assert live_contexts() <= max(before, 1)


_CYCLES = """
import gc, sys
import psutil, torch, steelyard
sys.path.insert(0, sys.argv[1])
import test_freed_nets as cases

def resident():
    for _ in range(4):
        gc.collect()
    return psutil.Process().memory_info().rss / 2**20

def run(cycles):
    for i in range(cycles):
        cases.use_and_drop(cases.Two, cases.train if i % 2 else cases.infer)
    return resident()

# The first cycles fill the caches of the allocator.
before = run(100)
print((run(200) - before) / 200)
"""


@pytest.mark.slow
def test_two_hundred_nets_leave_no_memory_behind(request):
    command = [sys.executable, "-c", _CYCLES, str(request.path.parent)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    assert float(ran.stdout) < 0.05
