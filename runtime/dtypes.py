"""Element types of the IR as torch's."""

import torch
from torch_mlir import ir

from steelyard.dialect.types import tensor_info

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "ui8": torch.uint8,
    "i8": torch.uint8,
    "si8": torch.int8,
    "si16": torch.int16,
    "si32": torch.int32,
    "si64": torch.int64,
    "i64": torch.int64,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "i1": torch.bool,
    "f64": torch.float64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
}


def result_dtype(type_: ir.Type) -> torch.dtype:
    """The dtype of a tensor of this type."""
    info = tensor_info(type_)
    assert info is not None, "kernels make ranked tensors"
    return DTYPES[info.dtype]


def shape_of(type_: ir.Type) -> tuple[int | None, ...]:
    """The sizes that a tensor type states."""
    info = tensor_info(type_)
    assert info is not None, "kernels make ranked tensors"
    return info.shape
