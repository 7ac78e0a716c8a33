"""Quantize and amax on the CPU."""

import operator
from typing import Any

import torch

from steelyard.errors import ConstraintError, require, shown
from steelyard.formats.checks import (
    amax_pair,
    check_amax_options,
    check_flag,
    check_is_copy,
    check_is_scheme,
    check_matrix_shape,
    check_scheme,
)
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import amax_shape, codes_shape, scales_shape, stored_shape
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import (
    check_copy,
    check_outputs,
    check_part,
    count_version,
    floats_of,
    matrix_of,
)

_WORD = 0xFFFFFFFFFFFFFFFF


def amax(x: torch.Tensor, *, rht: bool = False, per_row: bool = False) -> torch.Tensor:
    """Largest magnitude of `x`, of each row, or after the transform; 0 if empty, NaN if `x` holds one."""
    check_amax_options(rht=rht, per_row=per_row)
    x, matrix = matrix_of(x)
    out = torch.empty(x.shape[:1] if per_row else (), dtype=torch.float32)
    _cpu.amax(matrix, out.data_ptr(), rht, per_row, torch.get_num_threads())
    return out


def quantize(
    x: torch.Tensor,
    row: Scheme | None,
    col: Scheme | None,
    *,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | tuple | None = None,
    rng: tuple[int, int] | None = None,
) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """The rowwise and the columnwise copy of `x`, its leading dims flattened; None where no scheme is given.

    `scale`: the scale of per-tensor copies (needed for delayed ones), or what static ones are decoded by; `amax`: one
    already reduced, for per-tensor and NVFP4 copies, or a pair (row, col); `rng`: (seed, offset) of stochastic
    rounding.
    """
    x, matrix = matrix_of(x)
    return quantize_source(matrix, row, col, scale=scale, amax=amax, rng=rng)


def quantize_source(matrix: tuple, row, col, *, scale, amax, rng, producer: tuple | None = None) -> tuple:
    """`quantize` of a matrix as kernels read it, or of one that `producer` makes while it is quantized."""
    check_schemes(row, col)
    shape = matrix[2], matrix[3]
    row_copy = None if row is None else empty_copy(row, shape, columnwise=False)
    col_copy = None if col is None else empty_copy(col, shape, columnwise=True)
    _quantize(matrix, row_copy, col_copy, scale, amax, rng, producer)
    return row_copy, col_copy


def check_schemes(row: Any, col: Any) -> None:
    """Refuse what is neither a scheme nor None."""
    for scheme, name in ((row, "row"), (col, "col")):
        if scheme is not None:
            check_is_scheme(scheme, name)


def quantize_into(
    x: torch.Tensor,
    row: QuantizedCopy | None,
    col: QuantizedCopy | None,
    *,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | tuple | None = None,
    rng: tuple[int, int] | None = None,
) -> None:
    """Quantize `x` by the schemes of copies that exist, into their memory; they share none with `x` or each other."""
    x, matrix = matrix_of(x)
    outputs = {}
    for copy, name in ((row, "row"), (col, "col")):
        if copy is None:
            continue
        check_is_copy(copy, name)
        require(
            copy.shape == (matrix[2], matrix[3]) and copy.columnwise == (name == "col"),
            "quantize_shape",
            f"the {name} copy must be the {name} copy of a {matrix[2]}x{matrix[3]} matrix, got "
            f"{'a columnwise' if copy.columnwise else 'a rowwise'} copy of shape {tuple(copy.shape)}",
        )
        check_copy(copy, name)
        parts = {f"{name}.codes": copy.codes, f"{name}.scales": copy.scales, f"{name}.amax": copy.amax}
        outputs |= {part: tensor for part, tensor in parts.items() if tensor is not None}
    check_outputs(outputs, {"x": x})
    _quantize(matrix, row, col, scale, amax, rng)
    for tensor in outputs.values():
        count_version(tensor)


def empty_copy(scheme: Scheme, shape: tuple[int, int], *, columnwise: bool) -> QuantizedCopy:
    """A copy with memory and no values yet, for `quantize_into`."""
    check_is_scheme(scheme, "scheme")
    check_matrix_shape(shape, "shape")
    check_flag(columnwise, "columnwise", "copy_kind")
    stored = stored_shape(scheme, shape, columnwise)
    scheme_bits(scheme)
    scale_dtype = torch.float32 if scheme.scale == "f32" else torch.uint8
    amax = amax_shape(scheme, stored)
    return QuantizedCopy(
        torch.empty(codes_shape(scheme, stored), dtype=torch.uint8),
        torch.empty(scales_shape(scheme, stored, columnwise), dtype=scale_dtype),
        None if amax is None else torch.empty(amax, dtype=torch.float32),
        scheme,
        shape,
        columnwise,
    )


def _quantize(matrix, row, col, scale, amax, rng, producer=None) -> None:
    """Check what the schemes need beside the matrix, then run; nothing is written before every check has passed."""
    if row is None and col is None:
        return
    amaxes = amax_pair(amax, row and row.scheme, col and col.scheme)
    amaxes = [None if copy is None else _given_amax(copy, own) for copy, own in zip((row, col), amaxes, strict=True)]
    for copy in (row, col):
        if copy is not None:
            check_scheme(copy.scheme, columnwise=copy.columnwise, scale=scale, rng=rng)
    scale = None if scale is None else floats_of(scale, "scale", "quantize_scale")
    if scale is not None:
        check_part(scale.reshape(()) if scale.numel() == 1 else scale, "scale", torch.float32, ())
    seed, offset = (0, 0) if rng is None else _words(rng)
    row_arguments, col_arguments = map(_target_arguments, (row, col), amaxes)
    pointer = 0 if scale is None else scale.data_ptr()
    _cpu.quantize(matrix, row_arguments, col_arguments, pointer, seed, offset, torch.get_num_threads(), producer)


def _words(rng: Any) -> tuple[int, int]:
    """The seed and the offset of stochastic rounding."""
    try:
        seed, offset = map(operator.index, rng)
    except (TypeError, ValueError):
        raise ConstraintError("quantize_rng", f"rng must be two integers (seed, offset), got {shown(rng)}") from None
    return seed & _WORD, offset & _WORD


def _target_arguments(copy: QuantizedCopy | None, given: torch.Tensor | None):
    """A copy to be made, as `TargetArguments` of bind/arguments.h."""
    if copy is None:
        return None
    if given is not None and copy.amax is not None:
        copy.amax.copy_(given)
    amax = 0 if copy.amax is None else copy.amax.data_ptr()
    bits = scheme_bits(copy.scheme)
    return bits, copy.scheme.epsilon, copy.codes.data_ptr(), copy.scales.data_ptr(), amax, given is not None


def _given_amax(copy: QuantizedCopy, amax) -> torch.Tensor | None:
    """The amax the caller gave for this copy, if its scheme has one."""
    if amax is None or copy.amax is None:
        return None
    given = floats_of(amax, "amax", "quantize_amax")
    require(
        given.numel() == copy.amax.numel(),
        "quantize_amax",
        f"a given amax must have {copy.amax.numel()} values, got {given.numel()}",
    )
    return given.reshape(copy.amax.shape)
