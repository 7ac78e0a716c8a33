"""A mock of NVIDIA's driver: the real host code loads and launches through it, and the PTX interpreter executes."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import ptx_interpreter
from device_memory import DeviceMemory
from mock_heap import Heap
from ptx_text import PtxError, parse

_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint)
_CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_void_p),
)
INVALID_HANDLE, LAUNCH_FAILED = 400, 719


def build(directory: Path) -> ctypes.CDLL:
    """Compile the mock and load it under the driver's name, so that cuda-bindings finds it."""
    library = directory / "libcuda.so.1"
    source = Path(__file__).parent / "mock_driver.c"
    command = ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class MockDriver:
    """What was loaded and launched, and the first error of a kernel, after which every launch fails.

    A launch copies its arguments; its kernel runs when something waits for its stream.
    """

    def __init__(self, library: ctypes.CDLL, heap: Heap, *capabilities: tuple[int, int]):
        self._heap = heap
        self.memory_on: Callable[[int], DeviceMemory] = heap.memories.__getitem__
        """What launches on a device may access from here on."""
        self.texts: list[str] = []
        self.loaded: list[tuple[int, str]] = []
        """Which device was given which text."""
        self.launches: list[tuple[str, int, int]] = []
        self.failure: Exception | None = None
        self.refusal = ""
        """What its compiler says of any PTX, if it refuses it."""
        self._callbacks = _LOAD(self._load), _LAUNCH(self._launch), _CAPTURING(self._is_capturing)
        library.mock_set(*self._callbacks)
        for capability in capabilities:
            library.mock_add_device(*capability)

    def _is_capturing(self, _handle: int) -> int:
        return int(self._heap.streams.is_capturing)

    def _load(self, device: int, text: bytes, log: int, log_size: int) -> int:
        if self.refusal:
            said = self.refusal.encode()[: log_size - 1] + b"\0"
            ctypes.memmove(log, said, len(said))
            return 0
        self.texts.append(text.decode())
        self.loaded.append((device, self.texts[-1]))
        return len(self.texts)

    def _launch(self, device, module, name, blocks, threads, shared, handle, arguments) -> int:
        stream = self._heap.streams.find(handle)
        if stream.device != device:
            return INVALID_HANDLE
        _, entries = parse(self.texts[module - 1])
        entry = entries[name.decode()]
        if self.failure is not None or threads != entry.threads:
            return LAUNCH_FAILED
        values = [
            int.from_bytes(ctypes.string_at(arguments[index], size), "little")
            for index, (_, size) in enumerate(entry.parameters)
        ]
        memory = self.memory_on(device)

        def run() -> None:
            try:
                ptx_interpreter.run(self.texts[module - 1], values, blocks, memory, shared)
            except PtxError as error:
                self.failure = error
                raise

        self._heap.collect()
        stream.add(run)
        self.launches.append((entry.name, blocks, handle))
        return 0
