"""What commands call of `torch.cuda`, on mock GPUs: their properties, streams, events and graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from mock_gpu import MockGpus
from mock_streams import Graph
from torch.utils._python_dispatch import _disable_current_modes

from steelyard.runtime.cuda.kernels import Kernels
from steelyard.tools.gpu.checks import Device

NAME = "Mock GPU"


class _Event:
    """Every two events are a millisecond apart."""

    def __init__(self, enable_timing: bool = False):
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _other: "_Event") -> float:
        return 1.0


def place_on(gpus: MockGpus, device: str = "cuda") -> Device:
    """What `steelyard verify-gpu` takes for a GPU: the mock's tensors are on CPUs with numbers."""
    index = torch.device(device).index or 0
    return Device(Kernels(gpus.launchers[index]), f"cpu:{index}")


def patch_torch(patch, gpus: MockGpus) -> None:
    """Let `torch.cuda` be that of the mock; GPUs that lost their context say so whenever somebody waits for them."""
    streams = gpus.streams
    to = torch.Tensor.to

    def synchronize(_device: Any = None) -> None:
        if gpus.driver.failure is not None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        # Side streams first: only events may make them wait for the others.
        for stream in reversed(streams._streams):
            stream.synchronize()

    def properties(device: torch.device) -> SimpleNamespace:
        major, minor = gpus.launchers[device.index or 0].target.capability
        return SimpleNamespace(name=NAME, major=major, minor=minor, multi_processor_count=7, total_memory=1 << 30)

    class CUDAGraph:
        def __init__(self) -> None:
            self.captured: Graph | None = None

        def replay(self) -> None:
            assert self.captured is not None
            self.captured.replay(streams.current)

    @contextmanager
    def capture(graph: CUDAGraph) -> Iterator[None]:
        with streams.capture() as captured:
            yield
        graph.captured = captured

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        if gpus.heap.device_of(tensor) is None:
            return tensor
        gpus.heap.stream_of(tensor).synchronize()
        with _disable_current_modes():
            return tensor.detach().clone()

    def move(tensor: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        return to_host(tensor) if given == ("cpu",) else to(tensor, *given, **options)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: len(gpus.launchers),
        "get_device_properties": properties,
        "synchronize": synchronize,
        "_sleep": lambda _cycles: None,
        "Event": _Event,
        "Stream": lambda device: streams.make(torch.device(device).index),
        "stream": streams.use,
        # torch's capture keeps the state of generators.
        "get_rng_state": lambda: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda _state: None,
        "CUDAGraph": CUDAGraph,
        "graph": capture,
    }.items():
        patch.setattr(torch.cuda, name, value)
    # To torch, what is on a mock GPU is on the CPU already.
    patch.setattr(torch.Tensor, "cpu", to_host)
    patch.setattr(torch.Tensor, "to", move)
