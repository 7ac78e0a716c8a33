"""Checks of the arguments of a quantize, shared by the reference, the CPU kernels and the CUDA kernels."""

from typing import Any, cast

import torch

from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_input(x: torch.Tensor) -> None:
    """Refuse a source that cannot be quantized."""
    if x.dtype not in INPUT_DTYPES or x.dim() == 0:
        raise ConstraintError(
            "quantize_input",
            f"x must be float32, bfloat16 or float16 with at least one dim, got {x.dtype} of shape {tuple(x.shape)}",
        )


def check_amax_options(*, rht: bool, per_row: bool) -> None:
    """Refuse options that exclude each other."""
    if rht and per_row:
        raise ConstraintError(
            "amax_options", "an amax per row excludes the random Hadamard transform; ask for one of them"
        )


def check_scheme(scheme: Scheme, *, columnwise: bool, scale: Any, rng: Any) -> None:
    """Refuse a scheme that kernels do not support, or whose operands are missing."""
    usage, refused, taken = ("columnwise", "1x32", "32x1") if columnwise else ("rowwise", "32x1", "1x32")
    if scheme.custom or scheme.layout != "compact":
        raise ConstraintError("quantize_scheme", f"the scheme must be a built-in one with compact scales, got {scheme}")
    if scheme.block == refused:
        raise ConstraintError("quantize_block", f"a {usage} MX copy must have {taken} blocks or 32x32, got {refused}")
    if scheme.source == "delayed" and scale is None:
        raise ConstraintError("quantize_scale", "a delayed scheme needs its scale, got None; pass scale=")
    if scheme.rounding == "stochastic" and rng is None:
        raise ConstraintError("quantize_rng", "stochastic rounding needs rng, got None; pass rng=(seed, offset)")


def amax_pair(amax: Any, row: Scheme | None, col: Scheme | None) -> tuple[Any, Any]:
    """The given amax of each copy. One amax is enough for both if both copies quantize the same values."""
    if isinstance(amax, tuple):
        given = cast(tuple[Any, ...], amax)
        if len(given) != 2:
            raise ConstraintError("quantize_amax", f"a pair of amaxes must be (row, col), got {len(given)} values")
        return given
    if amax is not None and row is not None and col is not None and row.rht != col.rht:
        raise ConstraintError(
            "quantize_amax", "copies with and without the transform have different amaxes; give a pair (row, col)"
        )
    return amax, amax
