"""Dequantize, transpose and swizzle on the CPU."""

from dataclasses import replace

import torch

from steelyard.formats.checks import check_dtype, check_is_copy
from steelyard.formats.copies import QuantizedCopy, other_usage
from steelyard.formats.parts import Part, part_shapes, round_up
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.runtime import _cpu, dtypes
from steelyard.runtime.cpu.arguments import (
    DTYPES,
    check_copy,
    check_outputs,
    check_part,
    count_version,
    require,
)


def dequantize(
    copy: QuantizedCopy, dtype: torch.dtype = torch.float32, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The values of a copy as a logical (M, N) matrix, in `out` if given; the random Hadamard transform is undone."""
    check_is_copy(copy, "copy")
    if copy.borrowed:
        copy = other_usage(copy)
    check_copy(copy, "copy")
    check_dtype(dtype, "dtype", "dequantize_dtype")
    if out is None:
        out = torch.empty(copy.shape, dtype=dtype)
    else:
        check_part(out, "out", dtype, tuple(copy.shape))
        parts = {"copy.codes": copy.codes, "copy.scales": copy.scales, "copy.amax": copy.amax}
        check_outputs({"out": out}, {name: part for name, part in parts.items() if part is not None})
    if copy.scheme.rht and not copy.columnwise:
        return out.copy_(dequantize(replace(copy, shape=copy.shape[::-1], columnwise=True), dtype).T)
    _cpu.dequantize(
        scheme_bits(copy.scheme),
        copy.columnwise,
        copy.codes.data_ptr(),
        copy.scales.data_ptr(),
        0 if copy.amax is None else copy.amax.data_ptr(),
        *copy.shape,
        out.data_ptr(),
        DTYPES[dtype],
        torch.get_num_threads(),
    )
    count_version(out)
    return out


def transpose(copy: QuantizedCopy) -> QuantizedCopy:
    """The copy of the other usage, from the codes."""
    check_is_copy(copy, "copy")
    require(
        copy.scheme.is_transposable,
        "transpose_scheme",
        "the other usage must follow from the codes: one scale for the tensor or square tiles, "
        f"got block {copy.scheme.block}; quantize it from the source",
    )
    check_copy(copy, "copy")
    turned = replace(copy, columnwise=not copy.columnwise, **_empty_parts(copy))
    _cpu.transpose(_arguments(copy), _arguments(turned), torch.get_num_threads())
    return turned


def _empty_parts(copy: QuantizedCopy) -> dict[Part, torch.Tensor]:
    """Memory for the parts of the copy of the other usage."""
    return {
        part: torch.empty([size or 0 for size in sizes], dtype=dtypes.DTYPES[dtype])
        for part, (sizes, dtype) in part_shapes(copy.scheme, copy.shape, not copy.columnwise).items()
    }


def _arguments(copy: QuantizedCopy) -> tuple:
    """A copy, as `CopyArguments` of bind/arguments.h."""
    amax = 0 if copy.amax is None else copy.amax.data_ptr()
    return scheme_bits(copy.scheme), copy.columnwise, copy.codes.data_ptr(), copy.scales.data_ptr(), amax, *copy.shape


def swizzle(copy: QuantizedCopy) -> torch.Tensor:
    """The scales in the layout that GPU GEMMs read, padded with zeros; for MX and NVFP4 the order of its bytes."""
    check_is_copy(copy, "copy")
    require(
        copy.scheme.has_blocks,
        "swizzle_scheme",
        f"the gemm layout needs block scales, got block {copy.scheme.block}; use the scales as they are",
    )
    check_copy(copy, "copy")
    if copy.scheme.family == "block":
        return _pad_columns(copy.scales.T if copy.scheme.block == "1x128" else copy.scales)
    scales = copy.scales.T if copy.scheme.family == "mx" and copy.columnwise else copy.scales
    rows, columns = scales.shape
    out = torch.zeros((round_up(rows, 128), round_up(columns, 4)), dtype=torch.uint8)
    _cpu.swizzle(scales.data_ptr(), rows, columns, *scales.stride(), out.data_ptr())
    return out


def _pad_columns(scales: torch.Tensor) -> torch.Tensor:
    rows, columns = scales.shape
    out = torch.zeros((rows, round_up(columns, 4)), dtype=scales.dtype)
    out[:, :columns] = scales
    return out
