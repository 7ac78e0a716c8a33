"""Kernels of the CPU on tensors in groups, bound to a program like those of `bound`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from steelyard.formats.parts import Size, grouped_part_shapes, stored_shape
from steelyard.ir.kernel_calls import (
    CopySlots,
    GroupedCopySlots,
    GroupedGemmCall,
    GroupedPackCall,
    GroupedQuantizeCall,
)
from steelyard.runtime import _cpu, dtypes
from steelyard.runtime.cpu.arguments import DTYPES, flat, plain_matrix, scheme_bits
from steelyard.runtime.cpu.gemm import PACKED
from steelyard.runtime.quantizers import Quantizers

_WORD = 0xFFFFFFFFFFFFFFFF
_ANY_ROWS = 1 << 31
"""Rows of a matrix whose groups were checked when it was quantized."""

Bound = tuple[Callable, Callable | None]


def bind_quantize(call: GroupedQuantizeCall, _: Quantizers) -> Bound:
    """Quantize each group."""
    ends, scale, rng, groups = call.ends, call.scale, call.rng, call.groups
    row, col = (None if copy is None else _target(copy) for copy in call.copies)
    native, threads = _cpu.grouped_quantize, torch.get_num_threads

    def grouped_quantize(*values: Any) -> None:
        source = values[0].resolve_neg()
        *_, rows, columns = source.shape
        *lead, row_stride, column_stride = source.stride()
        # The matrices of a stack need no ends; if they have no elements, any stride will do.
        group_stride = (lead[0] or 1) if lead else 0
        seed, offset = (0, 0) if rng is None else (word & _WORD for word in values[rng].tolist())
        native(
            (source.data_ptr(), DTYPES[source.dtype], rows, columns, row_stride, column_stride),
            (0 if ends is None else values[ends].contiguous().data_ptr(), groups),
            group_stride,
            None if row is None else row(values),
            None if col is None else col(values),
            0 if scale is None else values[scale].data_ptr(),
            seed,
            offset,
            threads(),
        )

    return grouped_quantize, _allocate_copies(call)


def _target(copy: CopySlots) -> Callable[[tuple], tuple]:
    """A copy that is made, as the kernel takes it."""
    bits, epsilon = scheme_bits(copy.scheme), copy.scheme.epsilon
    codes, scales, amax = copy.codes, copy.scales, copy.amax
    return lambda values: (
        bits,
        epsilon,
        values[codes],
        values[scales],
        0 if amax is None else values[amax],
        False,
    )


def _allocate_copies(call: GroupedQuantizeCall) -> Callable:
    copies, groups = call.made_copies, call.groups

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        shape: tuple[Size, ...] = tuple(source.shape)
        return tuple(
            torch.empty([size or 0 for size in sizes], dtype=dtypes.DTYPES[dtype])
            for copy in copies
            for sizes, dtype in grouped_part_shapes(copy.scheme, shape, copy.columnwise, groups).values()
        )

    return allocate


def bind_pack(call: GroupedPackCall, _: Quantizers) -> Bound:
    """Pack each weight of a stack."""
    groups, rows, columns = (size or 0 for size in call.shape)
    copies = [(read, made, _strides(read, groups), _strides(made, groups)["packed"]) for read, made in call.pairs]

    def grouped_pack(*values: Any) -> None:
        for read, made, strides, packed in copies:
            bits, stored = scheme_bits(read.scheme), stored_shape(read.scheme, (rows, columns), read.columnwise)
            for group in range(groups):
                codes, scales, *amax = (values[place] + group * strides[part] for part, place in read.places.items())
                weight = (bits, codes, scales, amax[0] if amax else 0, *stored)
                _cpu.pack_weight(weight, values[made.codes] + group * packed)

    return grouped_pack, lambda *_: _empty(call)


def _strides(copy: CopySlots, groups: int) -> dict[Any, int]:
    """Bytes from each part of one group of a stack to the next."""
    shapes = copy.part_shapes().items()
    return {part: (sizes[0] or 0) // groups * dtypes.DTYPES[dtype].itemsize for part, (sizes, dtype) in shapes}


def _empty(call: GroupedPackCall) -> tuple[torch.Tensor, ...]:
    sizes = [[size or 0 for size in dtypes.shape_of(slot.type)] for slot in call.results]
    return tuple(torch.empty(size, dtype=torch.uint8) for size in sizes)


def bind_gemm(call: GroupedGemmCall, _: Quantizers) -> Bound:
    """One product for each group."""
    lhs, rhs = None if call.left is None else _operand(call.left), _operand(call.right)
    ends, groups, result, runtime_sizes = call.ends, call.groups, call.out, call.sizes
    is_wgrad = call.kind == "wgrad"
    known_rows = call.lhs_shape[0]
    native, threads = _cpu.grouped_qgemm, torch.get_num_threads

    def grouped_gemm(*values: Any) -> None:
        out = values[result]
        rows = known_rows if known_rows is not None else _ANY_ROWS if is_wgrad else out.shape[0]
        # A copy, if one is made, must live until the kernel has run.
        plain = flat(values[0]) if lhs is None else values[0]
        native(
            plain_matrix(plain) if lhs is None else lhs(values, rows),
            rhs(values, rows),
            is_wgrad,
            (values[ends].contiguous().data_ptr(), groups),
            (out.data_ptr(), DTYPES[out.dtype], out.shape[-2], out.shape[-1], out.shape[-1], 1),
            threads(),
        )

    slot = call.results[0]
    shape, dtype = dtypes.shape_of(slot.type), dtypes.result_dtype(slot.type)

    def allocate(*operands: Any) -> tuple[torch.Tensor]:
        sizes = iter(operands[runtime_sizes])
        return (torch.empty([next(sizes) if size is None else size for size in shape], dtype=dtype),)

    return grouped_gemm, allocate


def _operand(copy: GroupedCopySlots) -> Callable[[tuple, int], tuple]:
    """An operand as the kernel takes it: with all rows, or with those of one matrix of a stack."""
    bits = scheme_bits(replace(copy.scheme, layout="compact")) | (PACKED if copy.is_packed else 0)
    columnwise, codes, amax = copy.columnwise, copy.codes, copy.amax
    scales = None if copy.is_packed else copy.scales
    own_rows = copy.whole[1] if copy.is_stack else None
    columns = copy.whole[-1]

    def arguments(values: tuple, rows: int) -> tuple:
        own_scales = 0 if scales is None else values[scales]
        own_amax = 0 if amax is None else values[amax]
        return bits, columnwise, values[codes], own_scales, own_amax, rows if own_rows is None else own_rows, columns

    return arguments
