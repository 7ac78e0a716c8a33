"""The memory of mock GPUs: CPU tensors, whose memory torch's caching allocator would hand to others once they die."""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from device_memory import FRESH, DeviceMemory
from mock_ops import alias_of, dispatch
from mock_schedules import FreesFirst, Schedule
from mock_streams import Stream, Streams
from mock_tensors import PLAIN, tensors_on
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

POISON = 0xDD


@dataclass
class _Block:
    storage: torch.UntypedStorage
    address: int
    stream: Stream
    """The one that it was allocated for, whose next allocation may have its memory."""
    readers: set[Stream] = field(default_factory=set)
    """Other streams that record_stream named: its memory waits for them."""
    is_of_graph: bool = False
    """Whether it was made while a CUDA graph was captured, which keeps its memory."""
    is_of_backward: bool = False
    """Whether a node of autograd made it, so that it may be a gradient."""

    def is_free(self) -> bool:
        return torch._C._storage_Use_Count(self.storage._cdata) == 1


class Heap:
    """Knows the memory of every tensor of a GPU made while it is active, and the streams that work on it.

    Once a tensor is gone, its memory is overwritten in the order of its stream: by 0xDD, as another owner's values
    might. The host gets nothing back before the heap's end, so that a kernel that comes too late breaks a test, and not
    the process. Memory that nothing was written to holds 0xCD. torch's own ops run on streams too; see `mock_ops`.

    One GPU has all tensors, wherever torch thinks they are. Of several GPUs, the one with the number i has those that
    were moved to the device `cpu:i`, or made there; the others are the host's.
    """

    def __init__(self, frees_first: bool = False, *, devices: int = 1, schedule: Schedule | None = None):
        schedule = FreesFirst() if frees_first else schedule
        self.lock = threading.RLock()
        self.has_host = devices > 1
        self.streams = Streams(devices, schedule)
        self.memories = [DeviceMemory() for _ in range(devices)]
        self.is_working = False
        """Whether the values that are read now are read by a GPU, not by the host."""
        self._blocks: dict[int, _Block] = {}
        self._dead: list[torch.UntypedStorage] = []
        self._contexts = ExitStack()
        self.streams.hand_over = self._hand_over

    @property
    def memory(self) -> DeviceMemory:
        """The memory of the first device."""
        return self.memories[0]

    def __enter__(self) -> "Heap":
        self._contexts.enter_context(tensors_on(self))
        self._contexts.enter_context(_Mode(self))
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        self._contexts.close()
        if exc_type is None:
            self.streams.synchronize()

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Within this context, another thread than the heap's own works on the GPUs too."""
        with _Mode(self):
            yield

    def device_of(self, tensor: torch.Tensor) -> int | None:
        """The GPU that a tensor is on; None for the host."""
        block = self._blocks.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
        if block is not None:
            return block.stream.device
        return None if self.has_host else 0

    def stream_of(self, tensor: torch.Tensor) -> Stream:
        """The stream that an op of torch on a GPU's tensor runs on."""
        return self.streams.current_on(self.device_of(tensor) or 0)

    def add(self, tensors: Iterable[torch.Tensor], device: int | None = None, *, fresh: bool = False) -> None:
        """Know the memory of these tensors, of a device's current stream if it was not known."""
        device = self.streams.device if device is None else device
        for tensor in tensors:
            if is_traced(tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self._blocks:
                continue
            address, size = storage.data_ptr(), storage.nbytes()
            made = self._blocks[storage._cdata] = _Block(storage, address, self.streams.current_on(device))
            made.is_of_graph = made.stream.graph is not None
            made.is_of_backward = torch._C._current_autograd_node() is not None
            if size and fresh:
                ctypes.memset(address, FRESH, size)
            if size:
                array = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
                self.memories[device].register(address, array)

    def enqueue(self, work: Callable[..., None], tensors: Sequence[torch.Tensor | None], stream: Stream) -> None:
        """Give a stream work on tensors, whose memory it does not keep."""
        with _disable_current_modes():
            aliases = [None if tensor is None else alias_of(tensor) for tensor in tensors]

        def run() -> None:
            before, self.is_working = self.is_working, True
            try:
                with _disable_current_modes(), torch.no_grad():
                    work(*aliases)
            finally:
                self.is_working = before

        stream.add(run)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """What torch.Tensor.record_stream does."""
        self.readers_of(tensor).add(stream)

    def readers_of(self, tensor: torch.Tensor) -> set[Stream]:
        """The streams that a tensor's memory waits for."""
        return self._blocks[tensor.untyped_storage()._cdata].readers

    def _hand_over(self, source: Stream, target: Stream) -> None:
        for block in self._blocks.values():
            if block.is_of_backward and block.stream is source:
                block.readers.add(target)

    def collect(self) -> None:
        """Free the memory of tensors that are gone, and let streams go on."""
        for key in [key for key, block in self._blocks.items() if block.is_free()]:
            self._free(self._blocks.pop(key))
        self.streams.progress()

    def _free(self, block: _Block) -> None:
        size = block.storage.nbytes()
        if not size:
            return
        self._dead.append(block.storage)
        if block.is_of_graph:
            # The graph may use it again for what comes later; nobody else has it.
            if block.stream.graph is not None:
                block.stream.add(lambda: ctypes.memset(block.address, POISON, size))
            return
        reads = [stream.record_event() for stream in block.readers if stream is not block.stream]

        def overwrite() -> None:
            for read in reads:
                read.synchronize()
            ctypes.memset(block.address, POISON, size)
            self.memories[block.stream.device].release(block.address)

        block.stream.add_outside(overwrite)
        self.streams.free(block.stream)


class _Mode(TorchDispatchMode):
    """Shows a thread's ops to the heap."""

    def __init__(self, heap: Heap):
        super().__init__()
        self._heap = heap

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # torch captures no graphs below other modes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # what a quantized tensor makes of an op is shown next
        if any(map(is_traced, tree_leaves((args, kwargs)))):
            return func(*args, **(kwargs or {}))
        with self._heap.lock:
            self._heap.collect()
            return dispatch(self._heap, func, args, kwargs or {})


def is_traced(value: object) -> bool:
    """Whether a tensor has no memory: torch is capturing a graph."""
    return isinstance(value, torch.Tensor) and (type(value) not in PLAIN or value.is_meta)
