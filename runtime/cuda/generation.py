"""The generated kernels that the calls of a program launch, known from its types before anything runs.

Each declared kernel is bound as it is for a run, and called with tensors that have shapes and no memory, which begin
at an aligned address. What is launched then is what a run launches, as long as its tensors are contiguous and begin at
such addresses too, as torch's and those of planned memory do.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch_mlir import ir

from steelyard.codegen.kernel import Kernel as GeneratedKernel
from steelyard.dialect.types import tensor_info
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls import Kernel, kernels_of
from steelyard.runtime.cuda.bound import BINDINGS
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.runtime.dtypes import DTYPES
from steelyard.targets.architectures import Target

_UNKNOWN = 17
"""In the place of sizes known only at run time: one that no vector divides, for the code that takes any."""


class Recorder:
    """Keeps which kernels are launched, in order, and launches none."""

    def __init__(self, target: Target):
        self.target = target
        self.kernels: dict[GeneratedKernel, None] = {}

    def __call__(self, launch: Launch) -> None:
        self.kernels.setdefault(launch.kernel)


def launched_kernels(module: ir.Operation, target: Target) -> dict[str, list[GeneratedKernel]]:
    """The generated kernels that each declared kernel of CUDA launches, by the symbol of the declaration."""
    declared = kernels_of(module)
    found = {}
    for op in module.regions[0].blocks[0].operations:
        symbol = ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""
        if symbol in declared and declared[symbol].name.startswith("cuda."):
            types = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value).inputs
            # torch traces a graph around this, and would trace these calls too.
            with _disable_current_modes():
                found[symbol] = _launched(declared[symbol], list(types), target)
    return found


def _launched(kernel: Kernel, types: list[ir.Type], target: Target) -> list[GeneratedKernel]:
    operation = kernel.name.split(".")[1]
    if kernel.config.get("path") == "native":
        return []  # torch's own
    if kernel.config.get("algorithm") == "custom":
        kernel = replace(kernel, config={**kernel.config, "algorithm": torch.max})  # pyright: ignore[reportArgumentType]
    recorder = Recorder(target)
    run, allocate = BINDINGS[operation](kernel, lambda _: Kernels(recorder))
    operands = [_stand_in(kernel, name, type_) for name, type_ in zip(kernel.operands, types, strict=True)]
    run(*operands, *(allocate(*operands) if allocate is not None else ()))
    return list(recorder.kernels)


def _stand_in(kernel: Kernel, name: str, type_: ir.Type) -> Any:
    """A tensor without memory, or a size."""
    info = tensor_info(type_)
    if info is None:
        return _UNKNOWN
    shape = info.shape if None not in info.shape else _part_shape(kernel.config, name) or info.shape
    return torch.empty(_known(shape), dtype=DTYPES[info.dtype], device="meta")


def _part_shape(config: Mapping[str, Any], name: str) -> tuple | None:
    """The shape of a part that follows from the sizes of the matrix, some of them unknown."""
    copy, _, part = name.rpartition(".")
    scheme = config.get(copy, config.get(f"from_{copy}", config.get("scheme")))
    shape = config.get(f"{copy}_shape", config.get("shape"))
    if not isinstance(scheme, Scheme) or shape is None or part not in ("codes", "scales", "amax"):
        return None
    known = _known(shape)
    columnwise = copy == "col" or config.get("usage") == "columnwise" or _is_columnwise(config.get("kind"), copy)
    return part_shapes(scheme, (prod(known[:-1]), known[-1]), columnwise)[part][0]


def _is_columnwise(kind: str | None, operand: str) -> bool:
    return kind == "wgrad" or (kind == "dgrad" and operand == "rhs")


def _known(shape) -> list[int]:
    return [_UNKNOWN if size is None else size for size in shape]
