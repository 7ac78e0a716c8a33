"""Kernels in torch's profiler: the name of each call, and functions that record their calls."""

from collections.abc import Iterable, Sequence

from torch._C._profiler import _RecordFunctionFast as Record
from torch.autograd import profiler

from steelyard.dialect.types import Shape
from steelyard.ir.kernel_calls import GemmCall, KernelCall, ProduceQuantizeCall, QuantizingCall

RECORD = "record"
"""What functions that record call by this name: `Record`."""

__all__ = ["RECORD", "KernelLine", "Record", "is_recording", "kernel_name", "with_records"]


def is_recording() -> bool:
    """Whether a profiler of torch records now."""
    return profiler._is_profiler_enabled


class KernelLine(str):
    """A line of an emitted function that calls a kernel."""

    name: str
    tensors: Sequence[str]

    def __new__(cls, text: str, name: str, tensors: Sequence[str]):
        line = super().__new__(cls, text)
        line.name = name
        line.tensors = tensors
        return line


def with_records(lines: Iterable[str]) -> Iterable[str]:
    """The same lines, with a record of the profiler around each that calls a kernel."""
    for line in lines:
        if isinstance(line, KernelLine):
            yield f"with {RECORD}({line.name!r}, [{', '.join(line.tensors)}]):"
            yield f"    {line}"
        else:
            yield line


def kernel_name(call: KernelCall, layer: str) -> str:
    """What runs, its sizes and its layer: `steelyard cpu mx gemm fprop 256x1024x256 blocks.0.up`."""
    words = ["steelyard", call.device or "", *_description(call), layer]
    return " ".join(word for word in words if word)


def _description(call: KernelCall) -> list[str]:
    match call:
        case GemmCall():
            return [call.lhs.custom or call.lhs.family, "gemm", call.kind, _by(call.product_sizes)]
        case QuantizingCall():
            scheme = call.schemes[0]
            producer = call.producer if isinstance(call, ProduceQuantizeCall) else ""
            return [scheme.custom or scheme.family, producer, "quantize", _by(call.source_shape)]
        case _:
            return [call.OPERATION]


def _by(sizes: Shape) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)
