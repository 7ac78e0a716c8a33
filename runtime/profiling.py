"""Kernels in torch's profiler: the name of each call, and functions that record their calls."""

from collections.abc import Iterable, Sequence

from torch._C._profiler import _RecordFunctionFast as Record
from torch.autograd import profiler

from steelyard.dialect.types import Shape
from steelyard.ir.kernel_calls import GemmCall, KernelCall, ProduceQuantizeCall, QuantizingCall

RECORD = "record"
"""What functions that record call by this name: `Record`."""
KERNELS = "kernels"
"""What functions that record have by this name: the names of the kernels they call, in their order."""

__all__ = [
    "KERNELS",
    "RECORD",
    "KernelLine",
    "Record",
    "TapeLine",
    "is_recording",
    "kernel_name",
    "kernel_names",
    "with_records",
]


def is_recording() -> bool:
    """Whether a profiler of torch records now."""
    return profiler._is_profiler_enabled


class KernelLine(str):
    """A line of an emitted function that calls a kernel, for the layer with this number."""

    kernel: str
    layer: int
    tensors: Sequence[str]

    def __new__(cls, text: str, kernel: str, layer: int, tensors: Sequence[str]):
        line = super().__new__(cls, text)
        line.kernel = kernel
        line.layer = layer
        line.tensors = tensors
        return line

    def name(self, layers: Sequence[str]) -> str:
        """What runs, its sizes and its layer: `steelyard cpu mx gemm fprop 256x1024x256 blocks.0.up`."""
        return f"{self.kernel} {layers[self.layer]}".rstrip()


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


def kernel_names(lines: Iterable[str], layers: Sequence[str]) -> list[str]:
    """The names of the kernels that lines call, in their order, with the names of their layers."""
    names = []
    for line in lines:
        if isinstance(line, KernelLine):
            names.append(line.name(layers))
        elif isinstance(line, TapeLine):
            names += [f"{kernel} {layers[layer]}".rstrip() for kernel, layer in line.kernels]
    return names


def with_records(lines: Iterable[str]) -> Iterable[str]:
    """The same lines, with a record of the profiler around each that calls a kernel."""
    count = 0
    for line in lines:
        if isinstance(line, KernelLine):
            yield f"with {RECORD}({KERNELS}[{count}], [{', '.join(line.tensors)}]):"
            yield f"    {line}"
            count += 1
        elif isinstance(line, TapeLine):
            yield line.recorded(count)
            count += len(line.kernels)
        else:
            yield line


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
