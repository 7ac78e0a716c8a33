"""Second-level scales of FP4 products on several streams and devices: torch has one place for them in a process."""

import threading

import pytest
import torch
from kernel_cases import nvfp4
from mock_gpu import decode, mock_gpu
from mock_gpu import product_of as exact_product
from mock_streams import Event
from torch_rules import check_call

from steelyard import reference
from steelyard.errors import TargetError
from steelyard.runtime.cuda import gemm, scale_buffer, streams
from steelyard.runtime.cuda.scale_buffer import ScaleBuffer

MULTIPLY = gemm.multiply
ROWS = 128  # of a whole tile of scales, which swizzling leaves at its place


def operand(seed: int, scale: float) -> gemm.GemmOperand:
    x = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(seed)) * scale
    copy, _ = reference.quantize(x.bfloat16(), nvfp4(), None)
    return gemm.GemmOperand(copy.codes, reference.swizzle(copy), copy.amax, copy.scheme)


class Torch:
    """What torch does: the scale of a product goes to one place, and the product reads it there when it runs."""

    def __init__(self, gpu):
        self._gpu = gpu
        self.place = float("nan")
        self.levels: list[int] = []
        self.written: list[Event] = []
        """When the scale of each product is there, and nothing has read it."""

    def scaled_mm(self, a, b, scale_a, scaling_a, scale_b, scaling_b, **options) -> torch.Tensor:
        check_call(a, b, scale_a, scaling_a, scale_b, scaling_b, **options)
        self.levels.append(len(scale_a))
        ones = [torch.tensor(6.0 * 448.0)] * 2
        sides = [
            gemm.GemmOperand(codes.view(torch.uint8), scales[0].view(torch.uint8), one, nvfp4())
            for codes, scales, one in zip((a, b.t()), (scale_a, scale_b), ones, strict=True)
        ]
        product = exact_product(*(decode(side) if i == 0 else decode(side).T for i, side in enumerate(sides)))
        result, bias = torch.empty(product.shape, dtype=options["output_dtype"]), options["bias"]
        scale = (scale_a[1] * scale_b[1]).item() if len(scale_a) == 2 else None
        stream = self._gpu.heap.streams.current
        if scale is not None:
            stream.add(lambda: setattr(self, "place", scale))
            self.written.append(stream.record_event())
        stream.add(lambda: self._store(result, product, scale is not None, bias))
        return result

    def _store(self, result, product, reads_place, bias) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            scaled = product * torch.tensor(self.place) if reads_place else product
            result.copy_(scaled if bias is None else scaled + bias)


@pytest.fixture
def gpu(monkeypatch, library):
    with mock_gpu(monkeypatch, library, "sm_100a") as launcher:
        yield launcher


@pytest.fixture
def torch_on_gpu(gpu, monkeypatch):
    made = Torch(gpu)
    monkeypatch.setattr(gemm, "scaled_mm", made.scaled_mm)
    monkeypatch.setattr(gemm, "_scale_buffer", ScaleBuffer())
    return made


def expected_of(a: gemm.GemmOperand, b: gemm.GemmOperand, bias=None) -> torch.Tensor:
    """In float64: codes times block scales times second-level scales."""
    product = decode(a).double() @ decode(b).double().T
    return (product if bias is None else product + bias.double()).bfloat16()


def is_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return ((found.double() - expected.double()).norm() <= 2**-8 * expected.double().norm()).item()


def multiply_on_two_streams(gpu, torch_on_gpu) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Products of unlike scales on two streams, of which the second runs between the steps of the first if it may."""
    operands = [(operand(1, 1.0), operand(2, 1.0)), (operand(3, 64.0), operand(4, 32.0))]
    expected = [expected_of(*pair) for pair in operands]
    main, side = gpu.heap.streams.current, gpu.heap.streams.make()
    found = []
    for stream, pair in zip((main, side), operands, strict=True):
        with gpu.heap.streams.use(stream):
            found.append(MULTIPLY(*pair))
    torch_on_gpu.written[0].synchronize()
    side.synchronize()
    main.synchronize()
    return found, expected


def test_streams_take_turns(gpu, torch_on_gpu):
    found, expected = multiply_on_two_streams(gpu, torch_on_gpu)
    assert torch_on_gpu.levels == [2, 2]
    assert all(map(is_close, found, expected))


def test_it_is_noticed_if_they_do_not(gpu, torch_on_gpu, monkeypatch):
    monkeypatch.setattr(scale_buffer.ScaleBuffer, "_take", lambda *_: True)
    found, expected = multiply_on_two_streams(gpu, torch_on_gpu)
    assert not all(map(is_close, found, expected))


@pytest.mark.parametrize("bias", [False, True])
def test_own_scales_use_no_place(gpu, torch_on_gpu, monkeypatch, bias):
    monkeypatch.setenv("STEELYARD_FP4_SCALES", "own")
    vector = torch.randn(ROWS).bfloat16() * 100 if bias else None
    a, b = operand(1, 4.0), operand(2, 0.5)
    found = MULTIPLY(a, b, bias=vector)
    assert torch_on_gpu.levels == [1]
    assert found.dtype == torch.bfloat16
    assert is_close(found, expected_of(a, b, vector))


def test_other_words_are_refused(gpu, torch_on_gpu, monkeypatch):
    monkeypatch.setenv("STEELYARD_FP4_SCALES", "mine")
    with pytest.raises(TargetError, match="STEELYARD_FP4_SCALES must be torch or own, got 'mine'"):
        MULTIPLY(operand(1, 1.0), operand(2, 1.0))


def test_one_stream_waits_for_nothing(gpu, torch_on_gpu, monkeypatch):
    monkeypatch.setattr(type(gpu.heap.streams.current), "wait_stream", lambda *_: pytest.fail("it waits"))
    for _ in range(3):
        MULTIPLY(operand(1, 1.0), operand(2, 1.0))
    assert torch_on_gpu.levels == [2, 2, 2]


def test_a_graph_neither_waits_nor_makes_the_place(gpu, torch_on_gpu):
    a, b = operand(1, 1.0), operand(2, 1.0)
    gpu.heap.streams.is_capturing = True
    MULTIPLY(a, b)
    gpu.heap.streams.is_capturing = False
    MULTIPLY(a, b)
    side = gpu.heap.streams.make()
    with gpu.heap.streams.use(side):
        gpu.heap.streams.is_capturing = True
        side.wait_stream = lambda _: pytest.fail("it waits")
        MULTIPLY(a, b)
    assert torch_on_gpu.levels == [1, 2, 2]


def test_another_device_cannot_read_the_place(monkeypatch):
    monkeypatch.setattr(streams, "DEVICES", ("cuda", "meta"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(scale_buffer, "is_capturing", lambda device: False)
    buffer, free = ScaleBuffer(), []
    for index in (0, 1, 0):
        with buffer.turn(torch.device("cuda", index)) as is_free:
            free.append(is_free)
    assert free == [True, False, True]


def test_threads_take_turns(monkeypatch):
    """One may not put its scale there before the product of the other is on its way."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
    monkeypatch.setattr(scale_buffer, "is_capturing", lambda device: False)
    buffer, inside, order = ScaleBuffer(), threading.Event(), []

    def other():
        inside.set()
        with buffer.turn(torch.device("cuda", 0)):
            order.append("other")

    with buffer.turn(torch.device("cuda", 0)):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        thread.join(0.05)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]
