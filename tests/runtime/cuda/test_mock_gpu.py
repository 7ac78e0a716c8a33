"""The mock GPU finds errors of the host: memory that is used after it was freed, and streams that do not wait."""

import ctypes
import shutil
import weakref
from dataclasses import replace

import pytest
import torch
from kernel_cases import assert_same_copy
from mock_driver import MockDriver
from mock_gpu import mock_gpu
from mock_heap import POISON, Heap
from ptx_text import PtxError

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda import driver as cuda_driver
from steelyard.runtime.cuda.driver import CudaLauncher
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")


def raw(address: int, size: int) -> bytes:
    """Memory as it is now; torch's ops would wait for the stream."""
    return ctypes.string_at(address, size)


def test_kernels_run_when_something_waits_for_them(monkeypatch, library):
    with mock_gpu(monkeypatch, library, "sm_90a") as gpu:
        x = torch.randn(8, 32)
        copy, _ = Kernels(gpu).quantize(x, MX, None)
        codes = copy.codes.data_ptr(), 8 * 32
        before = raw(*codes)
        gpu.heap.streams.current.synchronize()
        expected = reference.quantize(x, MX, None)[0]
        assert before != expected.codes.numpy().tobytes()
        assert raw(*codes) == expected.codes.numpy().tobytes()


def test_memory_goes_to_others_in_the_order_of_its_stream(monkeypatch, library):
    """A kernel may read memory that the host frees after its launch: torch's allocator keeps it for the same stream."""
    with mock_gpu(monkeypatch, library, "sm_90a", frees_first=True) as gpu:
        x = torch.randn(8, 32)
        expected = reference.quantize(x, MX, None)[0]
        memory = x.data_ptr(), x.nbytes
        found, _ = Kernels(gpu).quantize(x, MX, None)
        del x
        assert raw(*memory) != bytes([POISON]) * memory[1]
        gpu.heap.collect()
        assert raw(*memory) == bytes([POISON]) * memory[1]
        assert_same_copy(found, expected)


class Careless:
    """Passes addresses of copies that it does not keep."""

    def __init__(self, launch: CudaLauncher):
        self._launch, self.target = launch, launch.target

    def __call__(self, launch: Launch) -> None:
        given = tuple(a.clone().data_ptr() if isinstance(a, torch.Tensor) else a for a in launch.arguments)
        self._launch(replace(launch, arguments=given))


@pytest.mark.parametrize("careless", [False, True])
def test_memory_must_live_until_the_launch(library, careless):
    with Heap() as heap:
        # The library calls it until the test ends.
        driver = MockDriver(library, heap, (9, 0))
        launcher = CudaLauncher(0, lambda: heap.streams.current.cuda_stream)
        x = torch.randn(8, 32)
        copy, _ = Kernels(Careless(launcher) if careless else launcher).quantize(x, MX, None)
        if careless:
            with pytest.raises(PtxError, match="memory"):
                heap.streams.synchronize()
        else:
            assert_same_copy(copy, reference.quantize(x, MX, None)[0])
        assert driver.launches


@pytest.mark.parametrize("keeps", [True, False])
def test_arguments_must_live_until_the_launch(monkeypatch, library, keeps):
    """The driver reads them through pointers."""
    packed, arguments, alive = cuda_driver._packed, [], []

    def pack(launch: Launch):
        pointers, kept = packed(launch)
        arguments.extend(map(weakref.ref, kept))
        return pointers, kept if keeps else None

    def look(launch: MockDriver, *given) -> int:
        alive.extend(argument() is not None for argument in arguments)
        return 0

    monkeypatch.setattr(cuda_driver, "_packed", pack)
    monkeypatch.setattr(MockDriver, "_launch", look)
    with mock_gpu(monkeypatch, library, "sm_90a") as gpu:
        Kernels(gpu).quantize(torch.randn(8, 32), MX, None)
    assert alive
    assert all(alive) == any(alive) == keeps


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_must_wait_for_what_another_makes(monkeypatch, library, waits):
    with mock_gpu(monkeypatch, library, "sm_90a") as gpu:
        x = torch.randn(8, 32)
        expected = reference.dequantize(reference.quantize(x, MX, None)[0])
        copy, _ = Kernels(gpu).quantize(x, MX, None)
        main, side = gpu.heap.streams.current, gpu.heap.streams.make()
        if waits:
            side.wait_stream(main)
        with gpu.heap.streams.use(side):
            found = Kernels(gpu).dequantize(copy)
            assert torch.equal(found, expected) == waits


@pytest.mark.parametrize("records", [True, False])
def test_memory_must_wait_for_another_stream_that_reads_it(monkeypatch, library, records):
    with mock_gpu(monkeypatch, library, "sm_90a", frees_first=True) as gpu:
        x = torch.randn(8, 32)
        expected = reference.quantize(x, MX, None)[0]
        side = gpu.heap.streams.make()
        with gpu.heap.streams.use(side):
            found, _ = Kernels(gpu).quantize(x, MX, None)
            if records:
                x.record_stream(side)
        del x
        gpu.heap.collect()
        with gpu.heap.streams.use(side):
            assert torch.equal(found.codes, expected.codes) == records
