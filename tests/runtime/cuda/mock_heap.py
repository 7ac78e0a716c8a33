"""The memory of a mock GPU: CPU tensors, whose memory torch's caching allocator would hand to others once they die."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from device_memory import FRESH, DeviceMemory
from mock_streams import Stream, Streams
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

POISON = 0xDD
_aten = torch.ops.aten
_ALLOCATIONS = (
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)


@dataclass
class _Block:
    storage: torch.UntypedStorage
    stream: Stream
    """The one that it was allocated for, whose next allocation may have its memory."""
    readers: set[Stream] = field(default_factory=set)
    """Other streams that record_stream named: its memory waits for them."""

    def is_free(self) -> bool:
        return torch._C._storage_Use_Count(self.storage._cdata) == 1


class Heap(TorchDispatchMode):
    """Knows the memory of every tensor made while it is active, and the streams that its kernels run on.

    Once a tensor is gone, its memory is overwritten in the order of its stream: by 0xDD, as another owner's values
    might. With `frees_first`, the stream hurries to do so; else all streams take their time. The host gets nothing back
    before the heap's end, so that a kernel that comes too late breaks a test, and not the process. `torch.empty` is
    filled with 0xCD. torch's own ops run at once, after what the current stream was given before.
    """

    def __init__(self, frees_first: bool = False):
        super().__init__()
        self.memory = DeviceMemory()
        self.streams = Streams()
        self._frees_first = frees_first
        self._blocks: dict[int, _Block] = {}
        self._dead: list[torch.UntypedStorage] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # torch captures no graphs below other modes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(_is_traced, tree_leaves((args, kwargs)))):
            return func(*args, **(kwargs or {}))
        self.collect()
        if func not in _ALLOCATIONS and not func.is_view:
            self.streams.current.synchronize()
        result = func(*args, **(kwargs or {}))
        fresh = func is _aten.empty.memory_format
        self.add([leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)], fresh=fresh)
        return result

    def __exit__(self, exc_type, exc_value, traceback):
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None:
            self.streams.synchronize()

    def add(self, tensors: Iterable[torch.Tensor], fresh: bool = False) -> None:
        """Know the memory of these tensors, of the current stream if it was not known."""
        for tensor in tensors:
            if _is_traced(tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            if size and address not in self._blocks:
                if fresh:
                    ctypes.memset(address, FRESH, size)
                self._blocks[address] = _Block(storage, self.streams.current)
                self.memory.register(address, np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8))

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """What torch.Tensor.record_stream does."""
        self.readers_of(tensor).add(stream)

    def readers_of(self, tensor: torch.Tensor) -> set[Stream]:
        """The streams that a tensor's memory waits for."""
        return self._blocks[tensor.untyped_storage().data_ptr()].readers

    def collect(self) -> None:
        """Free the memory of tensors that are gone."""
        for address in [address for address, block in self._blocks.items() if block.is_free()]:
            self._free(address, self._blocks.pop(address))

    def _free(self, address: int, block: _Block) -> None:
        reads = [stream.record_event() for stream in block.readers]
        self._dead.append(block.storage)

        def overwrite() -> None:
            for read in reads:
                read.synchronize()
            ctypes.memset(address, POISON, block.storage.nbytes())
            self.memory.release(address)

        block.stream.add(overwrite)
        if self._frees_first:
            block.stream.synchronize()


def _is_traced(value: object) -> bool:
    """Whether a tensor has no memory: torch is capturing a graph."""
    if not isinstance(value, torch.Tensor):
        return False
    return type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_cpu
