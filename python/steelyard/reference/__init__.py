"""The reference: every format and rule in plain NumPy and torch, slow and readable.

Kernels on every target write the same codes, scales and amaxes, byte for byte.
"""

from steelyard.reference.attention import attention
from steelyard.reference.attention_backward import attention_backward
from steelyard.reference.delayed import update_scale
from steelyard.reference.dequantize import dequantize
from steelyard.reference.elementwise import elementwise
from steelyard.reference.gemm import qgemm
from steelyard.reference.grouped import grouped_qgemm, grouped_quantize
from steelyard.reference.layouts import swizzle, transpose
from steelyard.reference.quantize import amax, quantize

__all__ = [
    "amax",
    "attention",
    "attention_backward",
    "dequantize",
    "elementwise",
    "grouped_qgemm",
    "grouped_quantize",
    "qgemm",
    "quantize",
    "swizzle",
    "transpose",
    "update_scale",
]
