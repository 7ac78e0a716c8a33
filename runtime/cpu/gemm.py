"""The scaled GEMM on the CPU."""

from typing import Literal, overload

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.reference.gemm import check_addends, check_epilogue, check_operands
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import ACTIVATIONS, DTYPES, check_copy, check_outputs, check_tensor, require
from steelyard.runtime.cpu.packing import PackedWeight, check_packed, describe

# Of an operand's scheme bits, as formats/scheme.h reads them.
PACKED, BORROWED = 1 << 15, 1 << 16
_NO_MATRIX = (0, 0, 0, 0, 0, 0)


@overload
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy | PackedWeight,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: Literal[False] = False,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor: ...
@overload
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy | PackedWeight,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: Literal[True],
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy | PackedWeight,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: bool = False,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`epilogue(a b^T (+ bias)) (+ residual)` or `a b^T (+ bias) (+ accumulate)`, each operand reduced along the dim
    that its copy is quantized along.

    So fprop takes (x row, w row), dgrad (dy row, w col), wgrad (dy col, x col). Sums are float32, addends of any dtype
    included, and the result is rounded once; it goes to `out` if given, which may be the very tensor that `accumulate`
    or `residual` is. With `preactivation` what the epilogue is given is a second result. A weight may be packed, and
    `a` may be a matrix that is not quantized, reduced along its last dim.
    """
    if isinstance(b, PackedWeight):
        check_packed(b, "b")
    right = describe(b) if isinstance(b, PackedWeight) else b
    check_operands(a, right)
    check_epilogue(epilogue, accumulate, residual, preactivation)
    if isinstance(a, torch.Tensor):
        check_tensor(a, "a")
        a = a.resolve_neg()
    else:
        check_copy(a, "a", borrowed=True)
    if not isinstance(b, PackedWeight):
        check_copy(b, "b", borrowed=True)
    given = {"bias": bias, "accumulate": accumulate, "residual": residual}
    shape = check_addends(a, right, given, out_dtype)
    addends = [_addend(name, tensor, shape) for name, tensor in given.items()]
    if out is None:
        out = torch.empty(shape, dtype=out_dtype)
    else:
        _check_out(out, shape, out_dtype, a, right, given)
        torch.autograd.graph.increment_version(out)
    kept = torch.empty(shape, dtype=out_dtype) if preactivation else None
    if out.numel() > 0:
        after = _epilogue(epilogue, addends, kept)
        _cpu.qgemm(_operand(a), _operand(b), *addends[:2], _matrix(out), torch.get_num_threads(), after)
    return out if kept is None else (out, kept)


def _epilogue(epilogue: str, addends: list[tuple], kept: torch.Tensor | None) -> tuple | None:
    """What follows the sums; a residual with nothing before it is one more addend, which is more exact."""
    if epilogue == "none" and kept is None:
        addends[1] = addends[1] if addends[2] is _NO_MATRIX else addends[2]
        return None
    return ACTIVATIONS[epilogue], addends[2], _NO_MATRIX if kept is None else _matrix(kept)


def _matrix(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), DTYPES[tensor.dtype], *tensor.shape, *tensor.stride()


def _operand(copy: QuantizedCopy | PackedWeight | torch.Tensor) -> tuple:
    if isinstance(copy, torch.Tensor):
        return _matrix(copy)
    if isinstance(copy, PackedWeight):
        return scheme_bits(copy.scheme) | PACKED, copy.columnwise, copy.data.data_ptr(), 0, 0, *copy.shape
    amax = 0 if copy.amax is None else copy.amax.data_ptr()
    bits = scheme_bits(copy.scheme) | (BORROWED if copy.borrowed else 0)
    return bits, copy.columnwise, copy.codes.data_ptr(), copy.scales.data_ptr(), amax, *copy.shape


def _addend(name: str, tensor: torch.Tensor | None, shape: tuple[int, int]) -> tuple:
    """A matrix, or a row that every row of the output gets."""
    if tensor is None:
        return _NO_MATRIX
    check_tensor(tensor, name)
    strides = tensor.stride() if tensor.dim() == 2 else (0, *tensor.stride())
    return tensor.data_ptr(), DTYPES[tensor.dtype], *shape, *strides


def _check_out(out, shape, out_dtype, a, b, addends: dict) -> None:
    check_tensor(out, "out")
    require(
        tuple(out.shape) == shape and out.dtype == out_dtype in DTYPES,
        "gemm_out",
        f"out must be {shape} of {out_dtype}, one of float32, bfloat16 and float16, "
        f"got {tuple(out.shape)} of {out.dtype}",
    )
    rows, columns = shape
    require(
        (columns <= 1 or out.stride(1) == 1) and (rows <= 1 or out.stride(0) >= columns),
        "gemm_out",
        f"out must have rows that are contiguous and do not overlap, got strides {out.stride()}",
    )
    is_copy = isinstance(a, QuantizedCopy)
    parts = {"a.codes": a.codes, "a.scales": a.scales, "a.amax": a.amax} if is_copy else {"a": a}
    parts |= {"b.codes": b.codes, "b.scales": b.scales, "b.amax": b.amax}
    parts |= {name: tensor for name, tensor in addends.items() if not _is_same(out, tensor)}
    check_outputs({"out": out}, {name: tensor for name, tensor in parts.items() if tensor is not None})


def _is_same(out: torch.Tensor, addend: torch.Tensor | None) -> bool:
    """Each element of `out` is read as an addend just before it is written."""
    return (
        addend is not None
        and addend.data_ptr() == out.data_ptr()
        and (addend.dtype, addend.shape, addend.stride()) == (out.dtype, out.shape, out.stride())
    )
