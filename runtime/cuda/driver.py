"""The CUDA driver: loads PTX, launches kernels on torch's current stream. Needs the extra `cuda`, and a GPU."""

import ctypes
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from steelyard.codegen.compilation import CompiledKernel, compile_kernel
from steelyard.codegen.kernel import Kernel
from steelyard.errors import TargetError
from steelyard.runtime.cuda.launches import Launch
from steelyard.targets.architectures import TARGETS, Target, Version
from steelyard.targets.gemm_paths import with_library

_CAPABILITIES = {target.capability: target for target in TARGETS.values()}
_STATIC_LIMIT = 48 << 10  # bytes of shared memory that a block has without asking
_MOST_BLOCKS = 2**31 - 1
_LOG_BYTES = 8 << 10


class CudaLauncher:
    """Launches kernels on one device. Each is loaded once; a launch neither waits nor allocates."""

    def __init__(
        self, device: int, stream: Callable[[], int], cublaslt: Version | None = None, *, has_mslk: bool = True
    ):
        """`stream` gives the handle of the stream that launches go to, `cublaslt` is torch's version of it, and
        `has_mslk` says whether torch was built with that library."""
        self._driver = _load_driver()
        self._stream = stream
        self._call("cuInit", 0)
        handle = self._call("cuDeviceGet", device)
        self.target = with_library(self._architecture_of(handle), cublaslt, has_mslk=has_mslk)
        self._context = self._call("cuDevicePrimaryCtxRetain", handle)
        self._functions: dict[Any, tuple[CompiledKernel, Any]] = {}

    def __call__(self, launch: Launch) -> None:
        kernel = launch.kernel
        if not 0 < launch.blocks <= _MOST_BLOCKS:
            most = f"from 1 to {_MOST_BLOCKS} blocks"
            raise TargetError(f"{kernel.name} takes {most}, got {launch.blocks}; split the tensor")
        with self._in_context(kernel):
            self._launch(launch)

    def load(self, kernels: Iterable[Kernel]) -> None:
        """Load kernels before their first launch, which may be part of a CUDA graph."""
        for kernel in kernels:
            if kernel not in self._functions:
                with self._in_context(kernel):
                    self._functions[kernel] = self._load(kernel)

    @contextmanager
    def _in_context(self, kernel: Kernel) -> Iterator[None]:
        """This device's context for a moment only: torch's current device is the user's choice."""
        self._call("cuCtxPushCurrent", self._context, kernel=kernel)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent", kernel=kernel)

    def _launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        loaded = self._functions.get(kernel)
        if loaded is None:
            loaded = self._functions[kernel] = self._load(kernel)
        compiled, function = loaded
        pointers, kept = _packed(launch)
        threads, shared = kernel.threads, compiled.shared_bytes
        stream = self._driver.CUstream(self._stream())
        address = ctypes.addressof(pointers)
        grid, block = (launch.blocks, 1, 1), (threads, 1, 1)
        self._call("cuLaunchKernel", function, *grid, *block, shared, stream, address, 0, kernel=kernel)
        del kept  # the driver has copied the arguments

    def _load(self, kernel: Kernel) -> tuple[CompiledKernel, Any]:
        self._refuse_capture(kernel)
        compiled = compile_kernel(kernel, self.target)
        module = self._load_module(compiled)
        function = self._call("cuModuleGetFunction", module, kernel.name.encode(), kernel=kernel)
        if compiled.shared_bytes > _STATIC_LIMIT:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, attribute, compiled.shared_bytes, kernel=kernel)
        return compiled, function

    def _refuse_capture(self, kernel: Kernel) -> None:
        """Loading allocates, which the driver forbids while a stream's work becomes a graph."""
        code, status = self._driver.cuStreamIsCapturing(self._driver.CUstream(self._stream()))
        # The default stream cannot be asked while another one is captured: then this is the answer.
        is_other = code == self._driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        is_own = status == self._driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        if is_other or is_own:
            raise TargetError(
                f"{kernel.name} must be loaded before a CUDA graph is captured, got its first launch inside of one; "
                "call the net with arguments of these shapes once, then capture"
            )

    def _load_module(self, compiled: CompiledKernel) -> Any:
        """The module of a kernel; what the driver's compiler says is part of its error."""
        options = self._driver.CUjit_option
        log = bytearray(_LOG_BYTES)
        names = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        text = compiled.ptx.encode() + b"\0"
        code, module = self._driver.cuModuleLoadDataEx(text, len(names), names, [log, _LOG_BYTES])
        if code != self._driver.CUresult.CUDA_SUCCESS:
            said = log.partition(b"\0")[0].decode(errors="replace").strip() or "nothing"
            place = f"{compiled.kernel.name} for {compiled.target.name}"
            raise TargetError(
                f"the CUDA driver must load {place}, got {code.name}; its compiler said: {said}; if it does not "
                "know this version of PTX, update the driver"
            )
        return module

    def _architecture_of(self, device: Any) -> Target:
        names = self._driver.CUdevice_attribute
        attributes = (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
        major, minor = (self._call("cuDeviceGetAttribute", attribute, device) for attribute in attributes)
        if (major, minor) not in _CAPABILITIES:
            known = ", ".join(f"{a}.{b}" for a, b in _CAPABILITIES)
            raise TargetError(f"kernels are generated for compute capabilities {known}, got {major}.{minor}")
        return _CAPABILITIES[major, minor]

    def _call(self, function: str, *arguments: Any, kernel: Kernel | None = None) -> Any:
        """What a driver function gives beside its error code, which is raised."""
        code, *results = getattr(self._driver, function)(*arguments)
        if code != self._driver.CUresult.CUDA_SUCCESS:
            place = "" if kernel is None else f" of {kernel.name}"
            # Kernels run after their launch: what fails in one is reported by a later call.
            hint = "" if kernel is None else "; it may be the error of an earlier launch: CUDA_LAUNCH_BLOCKING=1 tells"
            raise TargetError(f"{function}{place} must succeed, got {code.name} from the CUDA driver{hint}")
        return results[0] if results else None


def _packed(launch: Launch) -> tuple[ctypes.Array, list]:
    """An array of pointers to the arguments, and the arguments, which must outlive it."""
    types = {8: ctypes.c_uint64, 4: ctypes.c_uint32}
    kept = [types[size](value % (1 << (8 * size))) for value, size in launch.words()]
    return (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value in kept)), kept


@cache
def _load_driver() -> ModuleType:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise TargetError(
            f"running on CUDA needs cuda-bindings and NVIDIA's driver, got: {error}; pip install 'steelyard[cuda]'"
        ) from None
