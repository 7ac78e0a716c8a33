"""The scaled GEMM on the CPU."""

import torch

from steelyard.errors import ConstraintError
from steelyard.quantized_copy import QuantizedCopy
from steelyard.reference.gemm import check_operands
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import DTYPES, check_copy, check_disjoint, check_tensor, require, scheme_bits

_NO_MATRIX = (0, 0, 0, 0, 0, 0)


def qgemm(
    a: QuantizedCopy,
    b: QuantizedCopy,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`a b^T (+ bias) (+ accumulate)`, each operand reduced along the dim that its copy is quantized along.

    So fprop takes (x row, w row), dgrad (dy row, w col), wgrad (dy col, x col). Sums are float32, and the result is
    rounded once; it goes to `out` if given, which may be the very tensor that `accumulate` is.
    """
    check_operands(a, b)
    check_copy(a, "a")
    check_copy(b, "b")
    shape = _outer(a), _outer(b)
    addends = [_addend(tensor, shape) for tensor in (bias, accumulate)]
    if out is None:
        require(out_dtype in DTYPES, "gemm_out", f"out_dtype must be float32, bfloat16 or float16, got {out_dtype}")
        out = torch.empty(shape, dtype=out_dtype)
    else:
        _check_out(out, shape, out_dtype, a, b, bias, accumulate)
        torch.autograd.graph.increment_version(out)
    if out.numel() > 0:
        matrix = out.data_ptr(), DTYPES[out.dtype], *shape, *out.stride()
        _cpu.qgemm(_operand(a), _operand(b), *addends, matrix, torch.get_num_threads())
    return out


def _outer(copy: QuantizedCopy) -> int:
    return copy.shape[1 if copy.columnwise else 0]


def _operand(copy: QuantizedCopy) -> tuple:
    amax = 0 if copy.amax is None else copy.amax.data_ptr()
    return scheme_bits(copy.scheme), copy.columnwise, copy.codes.data_ptr(), copy.scales.data_ptr(), amax, *copy.shape


def _addend(tensor: torch.Tensor | None, shape: tuple[int, int]) -> tuple:
    """A matrix, or a row that every row of the output gets."""
    if tensor is None:
        return _NO_MATRIX
    check_tensor(tensor, "bias and accumulate")
    expected = shape if tensor.dim() == 2 else shape[1:]
    if tuple(tensor.shape) != expected or tensor.dtype not in DTYPES or tensor.is_neg():
        raise ConstraintError(
            "gemm_addend",
            f"bias and accumulate must be {shape[1:]} and {shape} of float32, bfloat16 or float16, "
            f"got {tuple(tensor.shape)} of {tensor.dtype}",
        )
    strides = tensor.stride() if tensor.dim() == 2 else (0, *tensor.stride())
    return tensor.data_ptr(), DTYPES[tensor.dtype], *shape, *strides


def _check_out(out, shape, out_dtype, a, b, bias, accumulate) -> None:
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
    parts = {"a.codes": a.codes, "a.scales": a.scales, "a.amax": a.amax, "bias": bias}
    parts |= {"b.codes": b.codes, "b.scales": b.scales, "b.amax": b.amax}
    if not _is_same(out, accumulate):
        parts["accumulate"] = accumulate
    check_disjoint({"out": out}, {name: tensor for name, tensor in parts.items() if tensor is not None})


def _is_same(out: torch.Tensor, accumulate: torch.Tensor | None) -> bool:
    """Each element of `out` is read as an addend just before it is written."""
    return (
        accumulate is not None
        and accumulate.data_ptr() == out.data_ptr()
        and (accumulate.dtype, accumulate.shape, accumulate.stride()) == (out.dtype, out.shape, out.stride())
    )
