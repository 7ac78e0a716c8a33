"""The kernels as torch operators, which torch.compile traces on tensors without memory and puts in its graph."""

import dataclasses
import json
from functools import cache
from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import packed_size, part_names, stored_shape
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor goes to the kernels (which refuse freed tensors) rather than to traced operators."""
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def is_freed(tensor: torch.Tensor | None) -> bool:
    """Whether the memory of a tensor was freed. torch's own copies would read it anyway."""
    if tensor is None or not has_memory(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0


@cache
def _text(scheme: Scheme | None) -> str:
    return "" if scheme is None else json.dumps(dataclasses.asdict(scheme))


@cache
def _scheme(text: str) -> Any:
    return Scheme(**json.loads(text)) if text else None


def dequantize(copy: QuantizedCopy, dtype: torch.dtype) -> torch.Tensor:
    return torch.ops.steelyard.dequantize(
        copy.codes, copy.scales, copy.amax, _text(copy.scheme), *copy.shape, copy.columnwise, dtype
    )


def quantize(x, row: Scheme | None, col: Scheme | None, *, scale=None, amax=None, rng=None):
    row_amax, col_amax = amax if isinstance(amax, tuple) else (amax, amax)
    parts = torch.ops.steelyard.quantize(x, _text(row), _text(col), scale, row_amax, col_amax, rng)
    copies = []
    for scheme, columnwise in ((row, False), (col, True)):
        if scheme is None:
            copies.append(None)
            continue
        codes, scales = parts.pop(0), parts.pop(0)
        amax = parts.pop(0) if "amax" in part_names(scheme) else None
        copies.append(QuantizedCopy(codes, scales, amax, scheme, tuple(x.shape), columnwise))
    return tuple(copies)


def dequantize_stack(
    parts: list[torch.Tensor], scheme: Scheme, shape: tuple[int, int, int], dtype: torch.dtype
) -> torch.Tensor:
    """The values of all matrices of a stack, whose parts, or the one packed part, have a dim for them."""
    return torch.ops.steelyard.dequantize_stack(parts, _text(scheme), list(shape), dtype)


def pack(copy: QuantizedCopy) -> torch.Tensor:
    """The bytes of a packed copy."""
    if has_memory(copy.codes):
        return cpu.pack(copy).data
    return torch.ops.steelyard.pack(
        copy.codes, copy.scales, copy.amax, _text(copy.scheme), *copy.shape, copy.columnwise
    )


def unpack(weight: cpu.PackedWeight) -> QuantizedCopy:
    scheme, shape, columnwise = weight.scheme, weight.shape, weight.columnwise
    parts = torch.ops.steelyard.unpack(weight.data, _text(scheme), *shape, columnwise)
    codes, scales, *amax = parts
    return QuantizedCopy(codes, scales, amax[0] if amax else None, scheme, shape, columnwise)


@torch.library.custom_op("steelyard::pack", mutates_args=())
def _pack(
    codes: torch.Tensor,
    scales: torch.Tensor,
    amax: torch.Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    columnwise: bool,
) -> torch.Tensor:
    return cpu.pack(QuantizedCopy(codes, scales, amax, _scheme(scheme), (rows, columns), columnwise)).data


@_pack.register_fake
def _(codes, scales, amax, scheme, rows, columns, columnwise):
    known = _scheme(scheme)
    size = packed_size(known, *stored_shape(known, (rows, columns), columnwise))
    return codes.new_empty((size,))


@torch.library.custom_op("steelyard::unpack", mutates_args=())
def _unpack(packed: torch.Tensor, scheme: str, rows: int, columns: int, columnwise: bool) -> list[torch.Tensor]:
    return _parts([cpu.unpack(cpu.PackedWeight(packed, _scheme(scheme), (rows, columns), columnwise))])


@_unpack.register_fake
def _(packed, scheme, rows, columns, columnwise):
    return _parts([cpu.empty_copy(_scheme(scheme), (rows, columns), columnwise=columnwise)])


@torch.library.custom_op("steelyard::dequantize", mutates_args=())
def _dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    amax: torch.Tensor | None,
    scheme: str,
    rows: int,
    columns: int,
    columnwise: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    return cpu.dequantize(QuantizedCopy(codes, scales, amax, _scheme(scheme), (rows, columns), columnwise), dtype)


@_dequantize.register_fake
def _(codes, scales, amax, scheme, rows, columns, columnwise, dtype):
    return codes.new_empty((rows, columns), dtype=dtype)


@torch.library.custom_op("steelyard::dequantize_stack", mutates_args=())
def _dequantize_stack(parts: list[torch.Tensor], scheme: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    known, (count, rows, columns) = _scheme(scheme), shape
    values = torch.empty(shape, dtype=dtype)
    for index in range(count):
        if len(parts) == 1:
            data = parts[0][index, : packed_size(known, rows, columns)]
            copy = cpu.unpack(cpu.PackedWeight(data, known, (rows, columns), columnwise=False))
        else:
            codes, scales, *amax = (part[index] for part in parts)
            amax = [scales] if known.family == "tensor" else amax
            copy = QuantizedCopy(codes, scales, amax[0] if amax else None, known, (rows, columns), False)
        values[index] = cpu.dequantize(copy, dtype)
    return values


@_dequantize_stack.register_fake
def _(parts, scheme, shape, dtype):
    return parts[0].new_empty(shape, dtype=dtype)


@torch.library.custom_op("steelyard::quantize", mutates_args=())
def _quantize(
    x: torch.Tensor,
    row: str,
    col: str,
    scale: torch.Tensor | None,
    row_amax: torch.Tensor | None,
    col_amax: torch.Tensor | None,
    rng: list[int] | None,
) -> list[torch.Tensor]:
    amax = None if row_amax is None and col_amax is None else (row_amax, col_amax)
    return _parts(
        cpu.quantize(
            x, _scheme(row), _scheme(col), scale=scale, amax=amax, rng=None if rng is None else (rng[0], rng[1])
        )
    )


@_quantize.register_fake
def _(x, row, col, scale, row_amax, col_amax, rng):
    schemes = ((_scheme(row), False), (_scheme(col), True))
    return _parts([None if scheme is None else cpu.empty_copy(scheme, x.shape, columnwise=c) for scheme, c in schemes])


def _parts(copies) -> list[torch.Tensor]:
    parts = [part for copy in copies if copy is not None for part in (copy.codes, copy.scales, copy.amax)]
    return [part for part in parts if part is not None]
