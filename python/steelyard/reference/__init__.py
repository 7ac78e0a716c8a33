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
from steelyard.reference.rows import (
    add_rows,
    column_mean,
    column_sum,
    layer_norm,
    layer_norm_backward,
    layer_norm_statistics,
    lookup,
    rms_norm,
    row_mean,
    row_sum,
    softmax,
    write_rows,
)

__all__ = [
    "add_rows",
    "amax",
    "attention",
    "attention_backward",
    "column_mean",
    "column_sum",
    "dequantize",
    "elementwise",
    "grouped_qgemm",
    "grouped_quantize",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_statistics",
    "lookup",
    "qgemm",
    "quantize",
    "rms_norm",
    "row_mean",
    "row_sum",
    "softmax",
    "swizzle",
    "transpose",
    "update_scale",
    "write_rows",
]
