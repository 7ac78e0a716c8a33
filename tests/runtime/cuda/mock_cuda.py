"""What commands call of `torch.cuda`, on the mock GPU: its properties, streams, events and graphs.

A graph is what was done while it was captured: launches, and torch's own ops, whose results are written again to where
they were. Unlike on a GPU, all of it is also done during the capture.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from mock_gpu import CheckedLauncher
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.launches import Launch

NAME = "Mock GPU"


class _Event:
    """Every two events are a millisecond apart."""

    def __init__(self, enable_timing: bool = False):
        assert enable_timing

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, _other: "_Event") -> float:
        return 1.0


class _Graph:
    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []

    def replay(self) -> None:
        for step in self.steps:
            step()


class _Capture(TorchDispatchMode):
    """Records launches, GEMMs and torch's other ops, with their tensors: a graph keeps its memory."""

    def __init__(self, gpu: CheckedLauncher, graph: _Graph, patch):
        super().__init__()
        self._steps, self._is_in_gemm = graph.steps, False
        patch.setattr(gpu, "_launch", self._recording_launches(gpu, gpu._launch))
        # The reference multiplies by NumPy, whose ops nobody sees.
        patch.setattr(gemm, "multiply", self._recording_gemms(gemm.multiply))

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def _recording_launches(self, gpu: CheckedLauncher, begin: Callable) -> Callable:
        def launch_and_record(launch: Launch) -> None:
            self._steps.append(lambda: gpu(launch))
            begin(launch)

        return launch_and_record

    def _recording_gemms(self, multiply: Callable) -> Callable:
        def multiply_and_record(*operands, **options) -> torch.Tensor:
            self._is_in_gemm = True
            product = multiply(*operands, **options)
            self._is_in_gemm = False
            self._steps.append(lambda: product.copy_(multiply(*operands, **options)))
            return product

        return multiply_and_record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        if not self._is_in_gemm:
            self._steps.append(lambda: _write_again(func(*args, **(kwargs or {})), results))
        return results


def _write_again(found: object, results: object) -> None:
    for again, result in zip(tree_leaves(found), tree_leaves(results), strict=True):
        if isinstance(result, torch.Tensor) and again.data_ptr() != result.data_ptr():
            result.copy_(again)


def patch_torch(patch, gpu: CheckedLauncher) -> None:
    """Let `torch.cuda` be the mock GPU's; GPUs that lost their context say so whenever somebody waits for them."""
    streams = gpu.heap.streams
    major, minor = gpu.target.capability
    sizes = {"multi_processor_count": 7, "total_memory": 1 << 30}
    properties = SimpleNamespace(name=NAME, major=major, minor=minor, **sizes)

    def synchronize(_device=None) -> None:
        if gpu.driver.failure is not None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        streams.synchronize()

    @contextmanager
    def capture(graph: _Graph) -> Iterator[None]:
        stream = streams.make()
        stream.wait_stream(streams.current)
        with patch.context() as during:
            during.setattr(streams, "is_capturing", True)
            with streams.use(stream), _Capture(gpu, graph, during):
                yield
            stream.synchronize()

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda _device: nullcontext(),
        "get_device_properties": lambda _device: properties,
        "synchronize": synchronize,
        "_sleep": lambda _cycles: None,
        "Event": _Event,
        "Stream": lambda _device: streams.make(),
        "stream": streams.use,
        # torch's capture keeps the state of generators.
        "get_rng_state": lambda: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda _state: None,
        "CUDAGraph": _Graph,
        "graph": capture,
    }.items():
        patch.setattr(torch.cuda, name, value)
