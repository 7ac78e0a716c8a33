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
from steelyard.runtime.cpu.arguments import scheme_bits
from steelyard.runtime.cpu.gemm import PACKED
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.runtime.quantizers import Quantizers

_NOWHERE = -1
"""The place of a value that a call does not have."""

Bound = tuple[Callable, Callable | None]


def bind_quantize(call: GroupedQuantizeCall, _: Quantizers) -> Bound:
    """Quantize each group."""
    row, col = map(_destination, call.copies)
    places = [_NOWHERE if place is None else place for place in (call.ends, call.scale, call.rng)]
    return _cpu.bound_grouped_quantize(TENSORS, row, col, *places, call.groups), _allocate_copies(call)


def _destination(copy: CopySlots | None) -> tuple | None:
    """A copy that is made, as the kernel takes it; each group has an amax of its own."""
    if copy is None:
        return None
    amax = _NOWHERE if copy.amax is None else copy.amax
    return scheme_bits(copy.scheme), copy.scheme.epsilon, copy.codes, copy.scales, amax, False


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
    runtime_sizes, is_wgrad = call.sizes, call.kind == "wgrad"
    lhs, rhs = None if call.left is None else _operand(call.left), _operand(call.right)
    run = _cpu.bound_grouped_gemm(TENSORS, lhs, rhs, call.ends, call.out, call.groups, is_wgrad, call.lhs_shape[0])
    slot = call.results[0]
    shape, dtype = dtypes.shape_of(slot.type), dtypes.result_dtype(slot.type)

    def allocate(*operands: Any) -> tuple[torch.Tensor]:
        sizes = iter(operands[runtime_sizes])
        return (torch.empty([next(sizes) if size is None else size for size in shape], dtype=dtype),)

    return run, allocate


def _operand(copy: GroupedCopySlots) -> tuple:
    """An operand as the kernel takes it: with all rows, or with those of one matrix of a stack."""
    bits = scheme_bits(replace(copy.scheme, layout="compact")) | (PACKED if copy.is_packed else 0)
    scales = _NOWHERE if copy.is_packed else copy.scales
    amax = _NOWHERE if copy.amax is None else copy.amax
    own_rows = copy.whole[1] if copy.is_stack else None
    rows = (1, True) if own_rows is None else (own_rows, False)
    return bits, copy.columnwise, copy.codes, scales, amax, *rows, copy.whole[-1]
