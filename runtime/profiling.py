"""Kernels in profiles: the name of each call, and functions that record their calls, for torch's profiler or ours."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch._C._profiler import _RecordFunctionFast as Record
from torch.autograd import profiler

from steelyard.dialect.types import Shape
from steelyard.ir.kernel_calls import GemmCall, KernelCall, ProduceQuantizeCall, QuantizingCall

RECORD = "record"
"""What functions that record call by this name: what makes the record of a call."""
KERNELS = "kernels"
"""What functions that record have by this name: the names of the calls they record, in their order."""

__all__ = [
    "KERNELS",
    "RECORD",
    "CallLine",
    "CallName",
    "ConsumingLine",
    "KernelLine",
    "Record",
    "Stopwatch",
    "TapeLine",
    "call_names",
    "is_recording",
    "kernel_name",
    "stopwatch",
    "stopwatches",
    "timed",
    "with_records",
]


def is_recording() -> bool:
    """Whether a profiler of torch records now."""
    return profiler._is_profiler_enabled


class CallName(str):
    """What a call runs, its sizes and its layer: `steelyard cpu mx gemm fprop 256x1024x256 blocks.0.up`."""

    kernel: str
    layer: str

    def __new__(cls, kernel: str, layer: str):
        name = super().__new__(cls, f"{kernel} {layer}".rstrip())
        name.kernel, name.layer = kernel, layer
        return name


class CallLine(str):
    """A line of an emitted function that calls something for the layer with this number, in torch or a kernel."""

    kernel: str
    layer: int
    tensors: Sequence[str]

    def __new__(cls, text: str, kernel: str, layer: int, tensors: Sequence[str] = ()):
        line = super().__new__(cls, text)
        line.kernel = kernel
        line.layer = layer
        line.tensors = tensors
        return line


class KernelLine(CallLine):
    """A line that calls a kernel of ours."""


class TapeLine(str):
    """A line of an emitted function that runs a tape: the kernels of its steps, and the numbers of their layers."""

    kernels: Sequence[tuple[str, int]]
    results: str
    tape: str
    arguments: str

    def __new__(cls, results: str, tape: str, arguments: str, kernels: Sequence[tuple[str, int]]):
        line = super().__new__(cls, f"{results}{tape}({arguments})")
        line.kernels = kernels
        line.results, line.tape, line.arguments = results, tape, arguments
        return line

    def recorded(self, first: int) -> str:
        """The same line with a record around each kernel, whose names begin at a number."""
        names = f"{KERNELS}[{first}:{first + len(self.kernels)}]"
        return f"{self.results}{self.tape}.recorded([{RECORD}(name, []) for name in {names}], {self.arguments})"


class ConsumingLine(TapeLine):
    """The same for a list `given`, of the arena's address and the arguments, that is emptied."""

    def __new__(cls, results: str, tape: str, kernels: Sequence[tuple[str, int]]):
        return super().__new__(cls, results, f"{tape}.consume", "given", kernels)

    def recorded(self, first: int) -> str:
        """The same line with a record around each kernel, which keeps the arguments."""
        return TapeLine(self.results, self.tape.removesuffix(".consume"), "*given", self.kernels).recorded(first)


def call_names(lines: Iterable[str], layers: Sequence[str], recorded: type[CallLine]) -> list[CallName]:
    """The names of the calls that lines of a kind, and tapes, make, in their order."""
    names = []
    for line in lines:
        if isinstance(line, recorded):
            names.append(CallName(line.kernel, layers[line.layer]))
        elif isinstance(line, TapeLine):
            names += [CallName(kernel, layers[layer]) for kernel, layer in line.kernels]
    return names


def with_records(lines: Iterable[str], recorded: type[CallLine]) -> Iterator[str]:
    """The same lines, with a record around each call of lines of a kind, and of tapes."""
    count = 0
    for line in lines:
        if isinstance(line, recorded):
            yield f"with {RECORD}({KERNELS}[{count}], [{', '.join(line.tensors)}]):"
            yield f"    {line}"
            count += 1
        elif isinstance(line, TapeLine):
            yield line.recorded(count)
            count += len(line.kernels)
        else:
            yield line


class Timed(NamedTuple):
    """A call that was timed, in nanoseconds."""

    name: CallName
    begin: int
    end: int


class Stopwatch:
    """Times the calls of emitted functions."""

    def __init__(self):
        self.calls: list[Timed] = []

    def record(self, name: CallName, _tensors: Sequence) -> "_Lap":
        """A context around a call."""
        return _Lap(name, self.calls)


class _Lap:
    __slots__ = ("_begin", "_calls", "_name")

    def __init__(self, name: CallName, calls: list[Timed]):
        self._name = name
        self._calls = calls
        self._begin = 0

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._calls.append(Timed(self._name, self._begin, time.perf_counter_ns()))


stopwatches: list[Stopwatch] = []


def stopwatch() -> Stopwatch | None:
    """What times the calls of emitted functions now."""
    return stopwatches[-1] if stopwatches else None


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """A context in which the calls of emitted functions, in whatever thread, are timed."""
    watch = Stopwatch()
    stopwatches.append(watch)
    try:
        yield watch
    finally:
        stopwatches.remove(watch)


def kernel_name(call: KernelCall) -> str:
    """What runs, and its sizes: `steelyard cpu mx gemm fprop 256x1024x256`."""
    words = ["steelyard", call.device or "", *_description(call)]
    return " ".join(word for word in words if word)


def _description(call: KernelCall) -> list[str]:
    match call:
        case GemmCall():
            schemes = [scheme for scheme in (call.lhs, call.rhs) if scheme is not None]
            families = dict.fromkeys(scheme.custom or scheme.family for scheme in schemes)
            return ["*".join(families), "gemm", call.kind, _by(call.product_sizes)]
        case QuantizingCall():
            scheme = call.schemes[0]
            producer = call.producer if isinstance(call, ProduceQuantizeCall) else ""
            return [scheme.custom or scheme.family, producer, "quantize", _by(call.source_shape)]
        case _:
            return [call.OPERATION]


def _by(sizes: Shape) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)
