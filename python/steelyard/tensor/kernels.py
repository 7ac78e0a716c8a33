"""The arithmetic of the tensor classes: native kernels, and the reference for what they lack.

Both write the same bytes. Under torch.compile, tracing goes through operators that call the same functions.
"""

import torch

from steelyard import reference
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.runtime.cpu.arguments import check_copy
from steelyard.tensor import swizzles, traced


def _pick(name: str):
    return getattr(cpu, name, None) or getattr(reference, name)


amax = _pick("amax")
qgemm = _pick("qgemm")
transpose = _pick("transpose")
_dequantize = _pick("dequantize")
_quantize = _pick("quantize")
_swizzle = _pick("swizzle")


def check(copy: QuantizedCopy, what: str) -> None:
    """Refuse a copy on the CPU that kernels cannot read."""
    if traced.has_memory(copy.codes) and copy.codes.is_cpu:
        check_copy(copy, what)


def dequantize(copy: QuantizedCopy, dtype: torch.dtype) -> torch.Tensor:
    """The values of a copy as its matrix."""
    if copy.codes.is_meta:
        return torch.empty(copy.shape, dtype=dtype, device="meta")
    return (_dequantize if traced.has_memory(copy.codes) else traced.dequantize)(copy, dtype)


def quantize(matrix: torch.Tensor, row, col, **operands) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """The rowwise and the columnwise copy of a matrix."""
    if matrix.is_meta:
        return _meta_copy(row, matrix, columnwise=False), _meta_copy(col, matrix, columnwise=True)
    return (_quantize if traced.has_memory(matrix) else traced.quantize)(matrix, row, col, **operands)


def swizzle(copy: QuantizedCopy) -> torch.Tensor:
    """The scales of a copy in the order that GPU GEMMs read."""
    if copy.scales.is_meta:
        return copy.scales.new_empty(swizzles.swizzled_shape(copy, tuple(copy.scales.shape)))
    return _swizzle(copy)


def _meta_copy(scheme: Scheme | None, matrix: torch.Tensor, *, columnwise: bool) -> QuantizedCopy | None:
    """The parts of a copy as shapes only."""
    if scheme is None:
        return None
    with torch.device("meta"):
        return cpu.empty_copy(scheme, (matrix.shape[0], matrix.shape[1]), columnwise=columnwise)
