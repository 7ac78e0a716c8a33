"""Tensors and schemes as the numbers that kernels take, checked first: kernels trust what they are given."""

import ctypes
import os
from numbers import Real
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from steelyard.errors import ConstraintError, require, shown
from steelyard.formats.checks import check_input, check_is_copy
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import amax_shape, codes_shape, scales_shape
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.runtime import _cpu

# The numbers that kernels know these by, as the native module has them.
DTYPES = {getattr(torch, name): number for number, name in enumerate(_cpu.dtype_names())}
_INTEGER, _NO_NUMBER = 254, 255
_NUMBERS = DTYPES | dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), _INTEGER)
ITEM_TYPES = {
    dtype: 256 * dtype.itemsize + _NUMBERS.get(dtype, _NO_NUMBER)
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
"""The code of each dtype: how many bytes an element has, and the dtype's number if kernels compute in it; integers with
a sign share one number."""
ACTIVATIONS = {name: number for number, name in enumerate(_cpu.activation_names())}
PRODUCERS = {name: number for number, name in enumerate(_cpu.producer_names())}
ROW_FUNCTIONS = {name: number for number, name in enumerate(_cpu.row_function_names())}


def check_tensor(tensor: torch.Tensor | None, what: str) -> None:
    """Refuse what has no plain memory on this machine."""
    if not isinstance(tensor, torch.Tensor):
        raise ConstraintError("cpu_tensor", f"{what} must be a tensor, got {type(tensor).__name__}")
    if not (tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested):
        kind = "a nested tensor" if tensor.is_nested else tensor.layout
        raise ConstraintError(
            "cpu_tensor", f"{what} must be a strided tensor on the CPU, got {kind} on {tensor.device}"
        )
    if not has_memory(tensor):
        raise ConstraintError(
            "cpu_tensor",
            f"{what} must have memory of its own, got a {type(tensor).__name__} without any: freed, or standing for "
            "other tensors as in torch.func; pass a tensor that holds its values",
        )


def has_memory(tensor: torch.Tensor) -> bool:
    """A tensor may stand for others, or for none, and its memory may have been freed."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and is_fake(tensor):
        return False
    try:
        # Freed memory is at address 0, and a view of it at its offset.
        return tensor.data_ptr() > tensor.storage_offset() * tensor.itemsize or tensor.numel() == 0
    except RuntimeError:
        return False


def floats_of(given: Any, what: str, constraint: str) -> torch.Tensor:
    """Numbers that a caller gives beside a matrix, as float32: a tensor, or one number."""
    if isinstance(given, Real):
        return torch.tensor(float(given), dtype=torch.float32)
    require(
        isinstance(given, torch.Tensor), constraint, f"{what} must be a tensor or a number, got {type(given).__name__}"
    )
    check_tensor(given, what)
    require(
        not (given.is_complex() or given.is_quantized),
        constraint,
        f"{what} must hold real numbers, got {given.dtype}",
    )
    return given.detach().to(torch.float32)


def matrix_of(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int, int, int, int]]:
    """`x` with its leading dims flattened, and what kernels read it by; keep the tensor while they run."""
    check_tensor(x, "x")
    check_input(x)
    if x.dim() != 2:
        x = x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])
    if x.is_neg():
        x = x.detach().resolve_neg()
    rows, columns = x.shape
    row_stride, column_stride = x.stride()
    return x, (x.data_ptr(), DTYPES[x.dtype], rows, columns, row_stride, column_stride)


def flat(x: torch.Tensor) -> torch.Tensor:
    """A tensor that kernels can read as it is; keep it while they run."""
    return x if x.is_contiguous() and not x.is_neg() else matrix_of(x)[0]


def plain_matrix(x: torch.Tensor) -> tuple:
    """What kernels read a tensor by, its leading dims flattened."""
    if x.dim() == 2:
        return x.data_ptr(), DTYPES[x.dtype], *x.shape, *x.stride()
    columns = x.shape[-1]
    rows = x.numel() // columns if columns else x.shape[:-1].numel()
    return x.data_ptr(), DTYPES[x.dtype], rows, columns, columns, 1


def check_copy(copy: QuantizedCopy, what: str, *, borrowed: bool = False) -> None:
    """Refuse a copy whose parts do not fit its scheme and shape, and a borrowed one unless the kernel reads those."""
    check_is_copy(copy, what)
    scheme_bits(copy.scheme)
    require(
        borrowed or not copy.borrowed,
        "copy_borrowed",
        f"{what} must have parts of its own usage, got those of the other one; only GEMMs read these",
    )
    stored = copy.stored_shape
    scale_dtype = torch.float32 if copy.scheme.scale == "f32" else torch.uint8
    check_part(copy.codes, f"{what}.codes", torch.uint8, codes_shape(copy.scheme, stored))
    check_part(
        copy.scales, f"{what}.scales", scale_dtype, scales_shape(copy.scheme, stored, copy.columnwise != copy.borrowed)
    )
    shape = amax_shape(copy.scheme, stored)
    if shape is not None:
        check_part(copy.amax, f"{what}.amax", torch.float32, shape)
    elif copy.amax is not None:
        raise ConstraintError(
            "copy_parts", f"{what}.amax must be None for block {copy.scheme.block}, got {shown(copy.amax)}"
        )


def check_part(tensor: torch.Tensor | None, what: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check_tensor(tensor, what)
    assert tensor is not None
    found = tensor.dtype, tuple(tensor.shape), tensor.is_contiguous() and not tensor.is_neg()
    require(
        found == (dtype, shape, True),
        "copy_parts",
        f"{what} must be contiguous {dtype} of shape {shape}, "
        f"got {'' if found[2] else 'non-contiguous '}{found[0]} of shape {found[1]}",
    )


def check_outputs(outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> None:
    """Refuse outputs that share memory with an input or with each other, or that cannot be written."""
    spans = [(name, *_span(tensor), name in outputs) for name, tensor in {**outputs, **inputs}.items()]
    for index, (name, begin, end, is_output) in enumerate(spans):
        for other, other_begin, other_end, _ in spans[index + 1 :]:
            require(
                not is_output or end <= other_begin or other_end <= begin or begin == end or other_begin == other_end,
                "copy_overlap",
                f"{name} must have memory of its own, got memory that {other} uses too",
            )
    for name, begin, end, is_output in spans:
        writable = not is_output or begin == end or (_is_writable(begin) and _is_writable(end - 1))
        require(writable, "output_writable", f"{name} must be memory that can be written, got read-only memory")


def _is_writable(address: int) -> bool:
    """Whether a byte can be written: the system is asked to put there what is there, and says no rather than crash."""
    byte = (ctypes.c_char * 1).from_address(address)
    reader, writer = os.pipe()
    try:
        os.write(writer, byte.raw)
        os.readv(reader, [byte])
    except OSError:
        return False
    finally:
        os.close(reader)
        os.close(writer)
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def count_version(tensor: torch.Tensor) -> None:
    """Tell autograd and caches that a kernel wrote here; inference tensors count no versions."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
