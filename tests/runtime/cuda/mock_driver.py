"""A mock of NVIDIA's driver: the real host code loads and launches through it, and the PTX interpreter executes.

Device memory is exactly what torch allocates while the mock is active; `torch.empty` is filled with 0xCD.
"""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import ptx_interpreter
import torch
from device_memory import FRESH, DeviceMemory
from ptx_text import PtxError, parse
from torch.utils._python_dispatch import TorchDispatchMode

_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_void_p),
)


def build(directory: Path) -> ctypes.CDLL:
    """Compile the mock and load it under the driver's name, so that cuda-bindings finds it."""
    library = directory / "libcuda.so.1"
    source = Path(__file__).parent / "mock_driver.c"
    command = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Allocations(TorchDispatchMode):
    """Records the memory of every tensor made while it is active; nothing is freed before it ends."""

    def __init__(self):
        super().__init__()
        self.memory = DeviceMemory()
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.add(result, fresh=func is torch.ops.aten.empty.memory_format)
        return result

    def add(self, tensor: torch.Tensor, fresh: bool = False) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if size and address not in self._storages:
            if fresh:
                ctypes.memset(address, FRESH, size)
            self._storages[address] = storage
            self.memory.register(address, np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8))
        return tensor


class MockDriver:
    """What was loaded and launched, and the interpreter's last error."""

    def __init__(self, library: ctypes.CDLL, memory: DeviceMemory, capability: tuple[int, int]):
        self.memory = memory
        self.texts: list[str] = []
        self.launches: list[tuple[str, int, int]] = []
        self.refusal: Exception | None = None
        self._callbacks = _LOAD(self._load), _LAUNCH(self._launch)
        library.mock_set(*self._callbacks, *capability)

    def _load(self, text: bytes) -> int:
        self.texts.append(text.decode())
        return len(self.texts)

    def _launch(self, module, name, blocks, threads, shared, stream, arguments) -> int:
        try:
            _, entries = parse(self.texts[module - 1])
            entry = entries[name.decode()]
            if threads != entry.threads:
                raise PtxError(f"{entry.name} has {entry.threads} threads per block, got {threads}")
            values = [
                int.from_bytes(ctypes.string_at(arguments[index], size), "little")
                for index, (_, size) in enumerate(entry.parameters)
            ]
            ptx_interpreter.run(self.texts[module - 1], values, blocks, self.memory, shared)
            self.launches.append((entry.name, blocks, stream))
            return 0
        except Exception as error:
            self.refusal = error
            return 1
