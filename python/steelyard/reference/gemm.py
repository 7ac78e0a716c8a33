"""The scaled GEMM: exact products of decoded operands, rounded once."""

import math
from typing import Literal, overload

import numpy as np
import torch

from steelyard.errors import ConstraintError, shown
from steelyard.formats.checks import INPUT_DTYPES, check_dtype, check_flag, check_is_copy
from steelyard.formats.copies import QuantizedCopy, other_usage
from steelyard.reference.dequantize import element_values, spread_scales
from steelyard.reference.scales import nvfp4_multiplier

_COPIES = "operands must be quantized copies, or a tensor and a quantized copy"


@overload
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: Literal[False] = False,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor: ...
@overload
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: Literal[True],
    out_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def qgemm(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy,
    *,
    bias: torch.Tensor | None = None,
    accumulate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "none",
    preactivation: bool = False,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`epilogue(a b^T (+ bias)) (+ residual)` or `a b^T (+ bias) (+ accumulate)`, each operand reduced along the dim
    that its copy is quantized along.

    So fprop takes (x row, w row), dgrad (dy row, w col), wgrad (dy col, x col). Addends of any dtype are added before
    the result is rounded. With `preactivation`, the input of the epilogue is a second result. `a` may be a matrix that
    is not quantized, reduced along its last dim.
    """
    check_operands(a, b)
    check_epilogue(epilogue, accumulate, residual, preactivation)
    check_addends(a, b, {"bias": bias, "accumulate": accumulate, "residual": residual}, out_dtype)
    left, right = operand(a), operand(b)
    with np.errstate(over="ignore", invalid="ignore"):
        product = left @ right.T
        if bias is not None:
            product = product + bias.detach().double().numpy()
        result = EPILOGUES[epilogue](torch.from_numpy(product)).numpy()
        for addend in (accumulate, residual):
            if addend is not None:
                result = result + addend.detach().double().numpy()
        rounded, kept = (torch.from_numpy(values.astype(np.float32)).to(out_dtype) for values in (result, product))
    return (rounded, kept) if preactivation else rounded


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x times the normal distribution, computed by erfc: torch's 1 + erf loses the lower tail."""
    return x * 0.5 * torch.special.erfc(x * -math.sqrt(0.5))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """torch's tanh approximation of gelu, with (1 + tanh y) / 2 computed as the sigmoid of 2 y for the same reason."""
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


EPILOGUES = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * torch.sigmoid(x),
}


def check_epilogue(epilogue: str, accumulate, residual, preactivation: bool) -> None:
    """Refuse an unknown epilogue, or one on a sum that is not complete."""
    if not isinstance(epilogue, str) or epilogue not in EPILOGUES:
        known = ", ".join(EPILOGUES)
        raise ConstraintError("gemm_epilogue", f"epilogue must be one of {known}, got {shown(epilogue)}")
    check_flag(preactivation, "preactivation", "gemm_epilogue")
    if accumulate is not None and (epilogue != "none" or residual is not None or preactivation):
        raise ConstraintError(
            "gemm_accumulate",
            "accumulate excludes an epilogue, a residual and the preactivation, got them together; "
            "accumulate first, or pass the addend as residual",
        )


def check_addends(
    a: QuantizedCopy | torch.Tensor,
    b: QuantizedCopy,
    addends: dict[str, torch.Tensor | None],
    out_dtype: torch.dtype,
) -> tuple[int, int]:
    """The shape of the product. Refuses addends that do not fit it, and result dtypes that are not supported."""
    shape = _sizes(a)[0], _sizes(b)[0]
    check_dtype(out_dtype, "out_dtype", "gemm_out")
    for name, tensor in addends.items():
        if tensor is None:
            continue
        expected = shape[1:] if name == "bias" else shape
        if not isinstance(tensor, torch.Tensor):
            raise ConstraintError("gemm_addend", f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "a nested tensor" if tensor.is_nested else tensor.layout
            raise ConstraintError("gemm_addend", f"{name} must be a strided tensor, got {kind}")
        if tuple(tensor.shape) != expected or tensor.dtype not in INPUT_DTYPES or tensor.is_neg():
            raise ConstraintError(
                "gemm_addend",
                f"{name} must have shape {expected} of float32, bfloat16 or float16, "
                f"got {tuple(tensor.shape)} of {'negated ' if tensor.is_neg() else ''}{tensor.dtype}",
            )
    return shape


def operand(copy: QuantizedCopy | torch.Tensor) -> np.ndarray:
    """The exact float64 values of a copy, reduction last; a random Hadamard transform is not undone."""
    if isinstance(copy, torch.Tensor):
        return copy.detach().double().resolve_neg().numpy()
    if copy.borrowed:
        return operand(other_usage(copy)).T
    values = element_values(copy).astype(np.float64) * spread_scales(copy)
    if copy.scheme.family == "nvfp4":
        assert copy.amax is not None
        level = nvfp4_multiplier(copy.amax.numpy().astype(np.float64), copy.scheme)
        with np.errstate(invalid="ignore"):
            values = values * (level[:, None] if copy.scheme.second_level == "row" else level)
    return values if copy.is_stored_transposed or not copy.columnwise else values.T


def check_operands(a: QuantizedCopy | torch.Tensor, b: QuantizedCopy) -> None:
    """Refuse operands that no GEMM takes."""
    kinds = type(a).__name__, type(b).__name__
    fits = isinstance(a, QuantizedCopy | torch.Tensor) and isinstance(b, QuantizedCopy)
    _require(fits, "gemm_copies", _COPIES, kinds)
    check_is_copy(b, "b")
    if isinstance(a, torch.Tensor):
        _check_values(a, b)
    else:
        check_is_copy(a, "a")
        _check_schemes(a, b)
    lengths = _sizes(a)[1], _sizes(b)[1]
    _require(lengths[0] == lengths[1], "gemm_reduction", "operands must reduce over the same length", lengths)


def _sizes(operand: QuantizedCopy | torch.Tensor) -> tuple[int, int]:
    """Rows of an operand, and the length that it is reduced over."""
    rows, columns = operand.shape
    is_columnwise = isinstance(operand, QuantizedCopy) and operand.columnwise
    return (columns, rows) if is_columnwise else (rows, columns)


def _check_values(a: torch.Tensor, b: QuantizedCopy) -> None:
    """Refuse what cannot be multiplied without quantizing it."""
    if a.is_nested or a.layout is not torch.strided or a.dim() != 2 or a.dtype not in INPUT_DTYPES:
        kind = "nested" if a.is_nested else f"{a.layout} of {a.dtype} with {a.dim()} dims"
        raise ConstraintError(
            "gemm_values", f"a must be a strided matrix of float32, bfloat16 or float16, or a copy, got {kind}"
        )
    if b.scheme.custom or b.scheme.rht or b.scheme.layout != "compact":
        raise ConstraintError(
            "gemm_values",
            "b must have a built-in scheme with compact scales and no random Hadamard transform where a is not "
            f"quantized, got {b.scheme}",
        )


def _check_schemes(a: QuantizedCopy, b: QuantizedCopy) -> None:
    families = a.scheme.family, b.scheme.family
    _require("custom" not in families, "gemm_families", "operands must have built-in schemes", families)
    _require(
        (a.scheme.block, b.scheme.block) != ("128x128", "128x128"),
        "gemm_tiles",
        "at least one operand must have 1x128 blocks",
        (a.scheme.block, b.scheme.block),
    )
    _require(
        a.scheme.rht == b.scheme.rht,
        "gemm_rht",
        "both operands or none must have the random Hadamard transform",
        (a.scheme.rht, b.scheme.rht),
    )
    layouts = a.scheme.layout, b.scheme.layout
    _require(layouts == ("compact", "compact"), "gemm_layout", "scales must be compact", layouts)


def _require(holds: bool, constraint: str, message: str, found: tuple) -> None:
    if not holds:
        raise ConstraintError(constraint, f"{message}, got {found[0]} and {found[1]}")
