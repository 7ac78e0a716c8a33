"""The generated kernels that the calls of a program launch, known from its types before anything runs.

Each declared kernel is bound as it is for a run, and called with tensors that have shapes and no memory, which begin
at an aligned address. What is launched then is what a run launches, as long as its tensors are contiguous and begin at
such addresses too, as torch's and those of planned memory do.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from steelyard.codegen.kernel import Kernel as GeneratedKernel
from steelyard.dialect.types import Shape, tensor_info
from steelyard.formats.parts import part_shapes
from steelyard.ir.kernel_calls import GemmCall, KernelCall, UpdateScaleCall
from steelyard.recipes import AMAX_ALGORITHM
from steelyard.runtime.cuda.bound import bind
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.runtime.dtypes import DTYPES
from steelyard.targets.architectures import Target
from steelyard.targets.gemm_paths import NATIVE

_UNKNOWN = 17
"""In the place of sizes known only at run time: one that no vector divides, for the code that takes any."""


class Recorder:
    """Keeps which kernels are launched, in order, and launches none."""

    def __init__(self, target: Target):
        self.target = target
        self.kernels: dict[GeneratedKernel, None] = {}

    def __call__(self, launch: Launch) -> None:
        self.kernels.setdefault(launch.kernel)


def launched_kernels(calls: Mapping[str, KernelCall], target: Target) -> dict[str, list[GeneratedKernel]]:
    """The generated kernels that each declared kernel of CUDA launches, by the symbol of the declaration."""
    found = {}
    for symbol, call in calls.items():
        if call.device == "cuda":
            # torch traces a graph around this, and would trace these calls too.
            with _disable_current_modes():
                found[symbol] = _launched(call, target)
    return found


def _launched(call: KernelCall, target: Target) -> list[GeneratedKernel]:
    if isinstance(call, GemmCall) and call.path == NATIVE:
        return []  # torch's own
    recorder = Recorder(target)
    # A user's own algorithm is code that nobody has here; any other launches the same kernels.
    quantizers = {(call.layer, AMAX_ALGORITHM): torch.max} if isinstance(call, UpdateScaleCall) else {}
    run, allocate = bind(call, quantizers, lambda _: Kernels(recorder))
    operands = [_stand_in(call, position) for position in range(len(call.operands))]
    run(*operands, *(allocate(*operands) if allocate is not None else ()))
    return list(recorder.kernels)


def _stand_in(call: KernelCall, position: int) -> Any:
    """A tensor without memory, or a size."""
    info = tensor_info(call.operands[position].type)
    if info is None:
        return _UNKNOWN
    shape = info.shape if None not in info.shape else _part_shape(call, position) or info.shape
    return torch.empty(_known(shape), dtype=DTYPES[info.dtype], device="meta")


def _part_shape(call: KernelCall, position: int) -> Shape | None:
    """The shape of a part that follows from the sizes of the matrix, some of them unknown."""
    for copy in call.read_copies:
        for part, place in copy.places.items():
            if place == position:
                rows, columns = _known(copy.shape)
                return part_shapes(copy.scheme, (rows, columns), copy.columnwise)[part][0]
    return None


def _known(shape: Shape) -> list[int]:
    return [_UNKNOWN if size is None else size for size in shape]
