"""Nets whose first calls come from several threads at once."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from breaking_models import Pair, Pairs
from torch import nn
from torch._dynamo.convert_frame import CatchErrorsWrapper

import steelyard

THREADS = 8
FEW = 3


def call_at_once(nets: Sequence[Any], arguments: Sequence[torch.Tensor], *, training: bool = False) -> list:
    """The result of each net, called by a thread of its own; an error is a result, too."""
    results: list = [None] * len(nets)
    barrier = threading.Barrier(len(nets))

    def call(number: int) -> None:
        barrier.wait()
        try:
            with torch.set_grad_enabled(training):
                result = nets[number](arguments[number])
            if training:
                result.sum().backward()
            results[number] = result.detach()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(nets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def make_sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


class Repeated(nn.Module):
    """Enough blocks that are alike for the net to be cut."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(make_sequence() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


CASES = [
    (make_sequence, THREADS, False),
    (make_sequence, THREADS, True),
    (Pair, FEW, True),
    (Pairs, FEW, False),
    (Repeated, FEW, True),
]


@pytest.mark.every(8)
@pytest.mark.parametrize(("make", "threads", "training"), CASES)
def test_each_thread_its_own_net(make, threads, training):
    x = torch.randn(4, 64)
    models = [make() for _ in range(threads)]
    nets = [steelyard.compile(model, "mxfp8") for model in models]
    found = call_at_once(nets, [x] * threads, training=training)
    for model, result in zip(models, found, strict=True):
        alone = steelyard.compile(model, "mxfp8")
        with torch.set_grad_enabled(training):
            assert torch.equal(result, alone(x).detach())
    counts = {net._steelyard.backend.graphs for net in nets}
    assert counts == {alone._steelyard.backend.graphs}


@pytest.mark.every(3)
@pytest.mark.parametrize("make", [make_sequence, Pairs, Repeated])
def test_one_net_for_all_threads_compiles_once_for_each_kind_of_arguments(make):
    model = make()
    shared, alone = (steelyard.compile(model, "mxfp8") for _ in range(2))
    for x in (torch.randn(4, 64), torch.randn(2, 3, 64)):
        found = call_at_once([shared] * THREADS, [x] * THREADS)
        with torch.no_grad():
            expected = alone(x)
        for result in found:
            assert torch.equal(result, expected)
        assert shared._steelyard.backend.graphs == alone._steelyard.backend.graphs
        assert len(shared.explain()) == len(alone.explain())


def test_a_thread_that_comes_before_torch_has_entered_what_another_compiled(monkeypatch):
    """torch enters compiled code after the lock of compilations."""
    compiled, may_enter = threading.Event(), threading.Event()

    def stop_before_the_entry(wrapper, *arguments):
        result = original(wrapper, *arguments)
        if threading.current_thread() is slow and not compiled.is_set():
            compiled.set()
            may_enter.wait(60)
        return result

    original = CatchErrorsWrapper.__call__
    monkeypatch.setattr(CatchErrorsWrapper, "__call__", stop_before_the_entry)
    net, x, results = steelyard.compile(make_sequence(), "mxfp8"), torch.randn(4, 64), []
    slow = threading.Thread(target=lambda: results.append(net(x).detach()))
    slow.start()
    assert compiled.wait(60)
    results.append(net(x).detach())
    may_enter.set()
    slow.join()
    assert net._steelyard.backend.graphs == 1
    assert torch.equal(*results)


def test_a_thread_that_waited_gets_what_fits_its_own_arguments():
    net = steelyard.compile(make_sequence(), "mxfp8")
    arguments = [torch.randn(*(1,) * (number % 4), 2 + number % 2, 64) for number in range(THREADS)]
    found = call_at_once([net] * THREADS, arguments)
    for x, result in zip(arguments, found, strict=True):
        with torch.no_grad():
            assert torch.equal(result, net(x))


def test_one_net_with_quantized_parameters():
    model = make_sequence()
    x = torch.randn(4, 64)
    with torch.no_grad():
        expected = steelyard.compile(model, "mxfp8")(x)
    net = steelyard.compile(model, "mxfp8", weights="quantized")
    for result in call_at_once([net] * THREADS, [x] * THREADS):
        assert torch.equal(result, expected)
    with torch.no_grad():
        assert torch.equal(net(x), expected)
