"""Where the tensor layer's arithmetic comes from: native kernels, and the reference for what they do not have.

Chosen once, here. Both leave the same bytes. What torch.compile traces goes through operators that call the same.
"""

import torch

from steelyard import reference
from steelyard.quantized_copy import QuantizedCopy
from steelyard.runtime import cpu
from steelyard.tensor import traced


def _pick(name: str):
    return getattr(cpu, name, None) or getattr(reference, name)


amax = _pick("amax")
qgemm = _pick("qgemm")
swizzle = _pick("swizzle")
transpose = _pick("transpose")
_dequantize = _pick("dequantize")
_quantize = _pick("quantize")


def dequantize(copy: QuantizedCopy, dtype: torch.dtype) -> torch.Tensor:
    """The values of a copy as its matrix."""
    return (_dequantize if traced.has_memory(copy.codes) else traced.dequantize)(copy, dtype)


def quantize(matrix: torch.Tensor, row, col, **operands) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """The rowwise and the columnwise copy of a matrix."""
    return (_quantize if traced.has_memory(matrix) else traced.quantize)(matrix, row, col, **operands)
