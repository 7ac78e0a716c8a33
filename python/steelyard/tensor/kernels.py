"""The arithmetic of the tensor classes: the kernels of the device that a tensor is on. All write the same bytes.

Under torch.compile, tracing goes through operators that call the same functions.
"""

from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.runtime.cpu.arguments import check_copy
from steelyard.runtime.cuda.streams import has_streams
from steelyard.tensor import swizzles, traced


def _pick(name: str, tensor: torch.Tensor) -> Any:
    """A function of the kernels of a tensor's device."""
    if has_streams(tensor.device):
        from steelyard.runtime.cuda.devices import kernels_on  # MLIR and LLVM, which the CPU does not need

        return getattr(kernels_on(tensor.device), name)
    return getattr(cpu, name)


qgemm = cpu.qgemm


def amax(x: torch.Tensor, *, rht: bool = False) -> torch.Tensor:
    """The largest magnitude, of the transform of the columns if `rht` is set."""
    return _pick("amax", x)(x, rht=rht)


def transpose(copy: QuantizedCopy) -> QuantizedCopy:
    """The copy of the other usage, from the codes."""
    return _pick("transpose", copy.codes)(copy)


def check(copy: QuantizedCopy, what: str) -> None:
    """Refuse a copy on the CPU that kernels cannot read."""
    if traced.has_memory(copy.codes) and copy.codes.is_cpu:
        check_copy(copy, what)


def dequantize(copy: QuantizedCopy, dtype: torch.dtype) -> torch.Tensor:
    """The values of a copy as its matrix."""
    if copy.codes.is_meta:
        return torch.empty(copy.shape, dtype=dtype, device="meta")
    return (_pick("dequantize", copy.codes) if traced.has_memory(copy.codes) else traced.dequantize)(copy, dtype)


def quantize(matrix: torch.Tensor, row, col, **operands) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """The rowwise and the columnwise copy of a matrix."""
    if matrix.is_meta:
        return _meta_copy(row, matrix, columnwise=False), _meta_copy(col, matrix, columnwise=True)
    chosen = _pick("quantize", matrix) if traced.has_memory(matrix) else traced.quantize
    return chosen(matrix, row, col, **operands)


def swizzle(copy: QuantizedCopy) -> torch.Tensor:
    """The scales of a copy in the order that GPU GEMMs read."""
    if copy.scales.is_meta:
        return copy.scales.new_empty(swizzles.swizzled_shape(copy, tuple(copy.scales.shape)))
    return _pick("swizzle", copy.scales)(copy)


def _meta_copy(scheme: Scheme | None, matrix: torch.Tensor, *, columnwise: bool) -> QuantizedCopy | None:
    """The parts of a copy as shapes only."""
    if scheme is None:
        return None
    with torch.device("meta"):
        return cpu.empty_copy(scheme, (matrix.shape[0], matrix.shape[1]), columnwise=columnwise)
