"""The parts that a user gives for a quantized tensor: shapes that hold the same values are taken, others refused."""

import math
from typing import Any

import torch

from steelyard.errors import RecipeError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import (
    amax_shape,
    codes_shape,
    gemm_scales_are_transposed,
    gemm_scales_shape,
    scales_shape,
)

Shape = tuple[int, ...]


def fit(copy: QuantizedCopy, codes: str, scales: str, amax: str | None, *, swizzled: bool) -> None:
    """Give the parts of a copy the shapes that kernels read. The names are those that errors show."""
    scheme, stored = copy.scheme, copy.stored_shape
    _check(codes, copy.codes, torch.uint8, codes_shape(scheme, stored))
    compact = scales_shape(scheme, stored, copy.columnwise)
    in_gemm_order = gemm_scales_shape(scheme, compact, copy.columnwise)
    scale_dtype = torch.float32 if scheme.scale == "f32" else torch.uint8
    if swizzled:
        _check(scales, copy.scales, scale_dtype, in_gemm_order)
    else:
        is_turned = gemm_scales_are_transposed(scheme, copy.columnwise)
        padded = in_gemm_order[::-1] if is_turned else in_gemm_order
        copy.scales = _without_padding(_with_dims(copy.scales, compact), compact, padded)
        hint = "; pass with_gemm_swizzled_scales=True for scales in the order that GPU GEMMs read"
        _check(scales, copy.scales, scale_dtype, compact, hint if is_turned else "")
    if amax is not None:
        expected = amax_shape(scheme, stored) or ()
        copy.amax = _with_dims(copy.amax, expected)
        _check(amax, copy.amax, torch.float32, expected)


def _with_dims(part: torch.Tensor | None, expected: Shape) -> Any:
    """One value may be given with any number of dims, and one value per row without the dim of size 1."""
    if part is None:
        return part
    is_one = part.numel() == math.prod(expected) == 1
    return part.reshape(expected) if is_one or (*part.shape, 1) == expected else part


def _without_padding(scales: torch.Tensor | None, compact: Shape, padded: Shape) -> Any:
    """Scales may be padded to the multiples that GPU GEMMs need."""
    if scales is None or tuple(scales.shape) != padded or padded == compact:
        return scales
    return scales[: compact[0], : compact[1]]


def _check(name: str, part: torch.Tensor | None, dtype: torch.dtype, shape: Shape, hint: str = "") -> None:
    if part is not None and part.dtype == dtype and tuple(part.shape) == tuple(shape):
        return
    found = "None" if part is None else f"{part.dtype} of shape {tuple(part.shape)}"
    raise RecipeError(f"{name} must be {dtype} of shape {tuple(shape)}, got {found}{hint}")
