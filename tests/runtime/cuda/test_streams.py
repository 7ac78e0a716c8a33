"""Weights that one stream makes and others, or CUDA graphs, read, on the streams of the mock GPU."""

import shutil

import pytest
import torch
from mock_gpu import CheckedLauncher, mock_gpu
from torch import nn

from steelyard import reference
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.streams import Moment
from steelyard.runtime.custom import CustomValue
from steelyard.runtime.weights import WeightArgument, Weights

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
SHAPE = 8, 32


@pytest.fixture(params=[False, True], ids=["late", "frees-first"])
def gpu(request, monkeypatch, library):
    with mock_gpu(monkeypatch, library, "sm_90a", frees_first=request.param) as launcher:
        yield launcher


def weight_on(gpu: CheckedLauncher, made: list | None = None, *, is_trained: bool = False) -> WeightArgument:
    """A weight that one launch makes."""

    def make(parameter: torch.Tensor) -> tuple:
        if made is not None:
            made.append(parameter)
        found, _ = Kernels(gpu).quantize(parameter.detach(), MX, None)
        return found.codes, found.scales

    return WeightArgument("@weight", make, [0], is_trained=is_trained)


def read(gpu: CheckedLauncher, parts: tuple) -> torch.Tensor:
    """The values of a weight, by a kernel that the current stream is given; nobody waits for it."""
    codes, scales = parts
    return Kernels(gpu).dequantize(QuantizedCopy(codes, scales, None, MX, SHAPE, False))


def expected_of(parameter: torch.Tensor) -> torch.Tensor:
    return reference.dequantize(reference.quantize(parameter.detach(), MX, None)[0])


def read_on_another_stream(gpu: CheckedLauncher) -> tuple[torch.Tensor, torch.Tensor]:
    """What another stream reads of a weight that is made again before it is done, and what is right."""
    weights, weight, parameter = Weights(), weight_on(gpu), nn.Parameter(torch.randn(SHAPE))
    expected = expected_of(parameter)
    streams = gpu.heap.streams
    side = streams.make()
    weights.get(weight, [parameter])
    with streams.use(side):
        found = read(gpu, weights.get(weight, [parameter]))
    with torch.no_grad():
        parameter.add_(1)
    assert torch.equal(read(gpu, weights.get(weight, [parameter])), expected_of(parameter))
    side.synchronize()
    return found, expected


def test_other_streams_wait_for_what_one_made(gpu):
    found, expected = read_on_another_stream(gpu)
    assert torch.equal(found, expected)


def test_it_is_noticed_if_a_stream_does_not_wait(monkeypatch, library):
    with mock_gpu(monkeypatch, library, "sm_90a") as gpu:
        monkeypatch.setattr(Moment, "wait", lambda *_: None)
        found, expected = read_on_another_stream(gpu)
        assert not torch.equal(found, expected)


def test_it_is_noticed_if_memory_does_not_wait(monkeypatch, library):
    with mock_gpu(monkeypatch, library, "sm_90a", frees_first=True) as gpu:
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
        found, expected = read_on_another_stream(gpu)
        assert not torch.equal(found, expected)


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_graph_quantizes_what_is_trained_itself(gpu, is_trained):
    made: list = []
    weights, weight = Weights(), weight_on(gpu, made, is_trained=is_trained)
    parameter = nn.Parameter(torch.ones(SHAPE))
    before = weights.get(weight, [parameter])
    gpu.heap.streams.is_capturing = True
    captured = weights.get(weight, [parameter])
    assert len(made) == (2 if is_trained else 1)
    assert (captured is before) == (not is_trained)
    weights.forget()
    assert [parts is captured for parts in weights._captured] == ([] if is_trained else [True])


def test_what_a_graph_makes_is_for_its_replays_only(gpu):
    """It holds values once the graph is replayed, not when the next call comes."""
    made: list = []
    weights, weight, parameter = Weights(), weight_on(gpu, made), nn.Parameter(torch.ones(SHAPE))
    Kernels(gpu).quantize(torch.ones(SHAPE), MX, None)  # which loads the kernel
    gpu.heap.streams.is_capturing = True
    captured = weights.get(weight, [parameter])
    gpu.heap.streams.is_capturing = False
    found = weights.get(weight, [parameter])
    assert len(made) == 2
    assert found is not captured
    assert weights.get(weight, [parameter]) is found


def test_parts_of_a_users_own_quantizer_wait_too(gpu):
    class Storage:
        PARTS = ("data", "absent")

        def __init__(self, parameter: torch.Tensor):
            self.data, self.absent = parameter.detach().clone(), None

    weight = WeightArgument("@weight", lambda p: (CustomValue(Storage(p), None, p.shape[:-1]),), [0])
    weights, parameter = Weights(), nn.Parameter(torch.ones(SHAPE))
    weights.get(weight, [parameter])
    streams = gpu.heap.streams
    side = streams.make()
    with streams.use(side):
        (part,) = weights.get(weight, [parameter])
    assert gpu.heap.readers_of(part.storage.data) == {side}
