"""Checks of the arguments of kernels, shared by the reference, the CPU kernels and the CUDA kernels."""

from typing import Any, cast

import torch

from steelyard.errors import ConstraintError, shown
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_flag(value: Any, what: str, constraint: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConstraintError(constraint, f"{what} must be True or False, got {shown(value)}")


def check_dtype(dtype: Any, what: str, constraint: str) -> None:
    """Refuse a dtype that kernels neither read nor write."""
    if not isinstance(dtype, torch.dtype) or dtype not in INPUT_DTYPES:
        raise ConstraintError(constraint, f"{what} must be float32, bfloat16 or float16, got {shown(dtype)}")


def check_is_scheme(scheme: Any, what: str) -> None:
    """Refuse what is no scheme."""
    if not isinstance(scheme, Scheme):
        raise ConstraintError("quantize_scheme", f"{what} must be a Scheme, got {shown(scheme)}")


def check_matrix_shape(shape: Any, what: str) -> None:
    """Refuse what is not the shape of a matrix."""
    sizes = cast(tuple[Any, ...], shape) if isinstance(shape, tuple) else ()
    if len(sizes) != 2 or not all(is_size(size) for size in sizes):
        raise ConstraintError(
            "copy_shape", f"{what} must be a tuple of two sizes (M, N), got {shown(cast(object, shape))}"
        )


def is_size(size: Any) -> bool:
    """Whether a value can be the size of a tensor."""
    # A size that is being traced has no number yet.
    return isinstance(size, torch.SymInt) or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)


def check_is_copy(copy: Any, what: str) -> None:
    """Refuse what is no quantized copy, or one whose fields other than its parts are of another kind."""
    if not isinstance(copy, QuantizedCopy):
        raise ConstraintError(
            "copy_kind", f"{what} must be a QuantizedCopy, got {type(copy).__name__}; quantize it first"
        )
    check_described(copy, what)
    check_flag(copy.borrowed, f"{what}.borrowed", "copy_kind")


def check_described(copy: Any, what: str) -> None:
    """Refuse a copy, or a packed one, whose scheme, shape or usage is something else."""
    check_is_scheme(copy.scheme, f"{what}.scheme")
    check_matrix_shape(copy.shape, f"{what}.shape")
    check_flag(copy.columnwise, f"{what}.columnwise", "copy_kind")


def check_input(x: torch.Tensor) -> None:
    """Refuse a source that cannot be quantized."""
    if x.dtype not in INPUT_DTYPES or x.dim() == 0:
        raise ConstraintError(
            "quantize_input",
            f"x must be float32, bfloat16 or float16 with at least one dim, got {x.dtype} of shape {tuple(x.shape)}",
        )


def check_amax_options(*, rht: bool, per_row: bool) -> None:
    """Refuse options that exclude each other."""
    check_flag(rht, "rht", "amax_options")
    check_flag(per_row, "per_row", "amax_options")
    if rht and per_row:
        raise ConstraintError(
            "amax_options", "an amax per row excludes the random Hadamard transform; ask for one of them"
        )


def check_scheme(scheme: Scheme, *, columnwise: bool, scale: Any, rng: Any) -> None:
    """Refuse a scheme that kernels do not support, or whose operands are missing."""
    usage, refused, taken = ("columnwise", "1x32", "32x1") if columnwise else ("rowwise", "32x1", "1x32")
    if scheme.custom or scheme.layout != "compact":
        raise ConstraintError("quantize_scheme", f"the scheme must be a built-in one with compact scales, got {scheme}")
    if scheme.family == "mx" and scheme.block == refused:
        raise ConstraintError("quantize_block", f"a {usage} MX copy must have {taken} blocks or 32x32, got {refused}")
    if scheme.source != "current" and scale is None:
        raise ConstraintError("quantize_scale", f"a {scheme.source} scheme needs its scale, got None; pass scale=")
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
