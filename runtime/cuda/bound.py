"""Calls of CUDA that a program makes: the planned ones, and those that torch runs by functions of its own.

A call launches on torch's current stream of the device that its operands are on, waits for nothing, reads no value
back, and allocates by torch only: so it can be part of a CUDA graph. No argument is checked, because the program made
them all.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch

from steelyard.codegen.launches.plan import LaunchPlan
from steelyard.errors import UnsupportedModelError
from steelyard.formats.parts import is_stored_transposed, part_shapes
from steelyard.ir.kernel_calls import (
    AdvanceRngCall,
    CopySlots,
    CountSaturatedCall,
    GemmCall,
    GroupedGemmCall,
    KernelCall,
    PadCall,
    UnpadCall,
    UpdateScaleCall,
)
from steelyard.runtime import dtypes
from steelyard.runtime.cuda import block_groups, gemm, groups
from steelyard.runtime.cuda.devices import kernels_on
from steelyard.runtime.cuda.padding import padded, rounded
from steelyard.runtime.cuda.planned import PlannedCall
from steelyard.runtime.quantizers import Quantizers, own_algorithm
from steelyard.targets.gemm_paths import NATIVE


def bind_planned(symbol: str, call: KernelCall, plan: LaunchPlan, quantizers: Quantizers) -> PlannedCall:
    """The functions of a call that launches generated kernels."""
    pick = own_algorithm(call, quantizers) if isinstance(call, UpdateScaleCall) else None
    return PlannedCall(symbol, plan, len(call.operands), lambda device: kernels_on(device).launch, pick)


@singledispatch
def bind(call: KernelCall) -> Callable[..., tuple]:
    """The function of a call that torch runs: it takes the operands and returns the results."""
    raise UnsupportedModelError(f"there is no plan for '{call.OPERATION}' on CUDA; run scaled-plan-launches first")


@bind.register
def _bind_gemm(call: GemmCall) -> Callable[..., tuple]:
    if call.path != NATIVE:
        raise UnsupportedModelError("there is no plan for an emulated 'gemm' on CUDA; run scaled-plan-launches first")
    assert call.left is not None
    lhs, rhs, bias = call.left.copy, call.right.copy, call.bias
    dtype = dtypes.result_dtype(call.results[0].type)

    def native_gemm(*values: Any) -> tuple[torch.Tensor]:
        left, right, own_bias = _operand(lhs, values), _operand(rhs, values), _at(values, bias)
        if left.codes.shape[1] == 0:
            # No GEMM reduces over nothing.
            empty = torch.zeros((left.codes.shape[0], right.codes.shape[0]), dtype=dtype, device=left.codes.device)
            return (empty if own_bias is None else empty + own_bias,)
        return (gemm.multiply(left, right, bias=own_bias, out_dtype=dtype),)

    return native_gemm


@bind.register
def _bind_grouped_gemm(call: GroupedGemmCall) -> Callable[..., tuple]:
    if call.path != NATIVE:
        raise UnsupportedModelError(
            "there is no plan for an emulated 'grouped_gemm' on CUDA; run scaled-plan-launches first"
        )
    assert call.left is not None
    lhs, rhs, ends, count = call.left, call.right, call.ends, call.groups
    reduction, columns = lhs.whole[-1], dtypes.shape_of(call.results[0].type)[-1]
    assert reduction
    assert columns
    dtype = dtypes.result_dtype(call.results[0].type)
    has_blocks = lhs.scheme.has_blocks
    is_turned = rhs.columnwise and not is_stored_transposed(rhs.scheme, rhs.columnwise)

    def native_grouped_gemm(*values: Any) -> tuple[torch.Tensor]:
        left, right = _operand(lhs, values), _operand(rhs, values)
        if has_blocks:
            sizes = reduction, columns
            return (block_groups.multiply(left, right, values[ends], sizes, is_turned=is_turned, out_dtype=dtype),)
        left = replace(left, codes=left.codes.view(-1, reduction))
        right = replace(right, codes=right.codes.view(count, columns, reduction))
        return (groups.multiply(left, right, values[ends], dtype),)

    return native_grouped_gemm


def _operand(slots: CopySlots, values: tuple) -> gemm.GemmOperand:
    """A copy as a native GEMM reads it."""
    return gemm.GemmOperand(values[slots.codes], values[slots.scales], _at(values, slots.amax), slots.scheme)


def _at(values: tuple, index: int | None) -> Any:
    return None if index is None else values[index]


@bind.register
def _bind_pad(call: PadCall) -> Callable[..., tuple]:
    """Parts of a quantized tensor with zeros behind them, or a plain tensor."""
    multiples, copy, parts = call.multiples, call.copy, call.parts
    if copy is None:
        return lambda source, *_: (padded(source, rounded(source.shape, multiples)),)
    scheme, columnwise = copy.scheme, copy.columnwise
    is_turned = is_stored_transposed(scheme, columnwise)

    def pad(codes: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Sizes known only at run time are those of the codes: what fills their last byte is padding too.
        rows, columns = codes.shape[0], codes.shape[1] * (2 if scheme.element == "f4E2M1FN" else 1)
        logical = rounded((columns, rows) if is_turned else (rows, columns), multiples)
        wanted = part_shapes(scheme, (logical[0], logical[1]), columnwise)
        pairs = zip((codes, *others), parts, strict=True)
        return tuple(padded(part, wanted[name][0]) for part, name in pairs)

    return pad


@bind.register
def _bind_unpad(call: UnpadCall) -> Callable[..., tuple]:
    shape = dtypes.shape_of(call.results[0].type)

    def unpad(source: torch.Tensor, *sizes: int) -> tuple[torch.Tensor]:
        given = iter(sizes)
        for dim, size in enumerate(shape):
            source = source.narrow(dim, 0, next(given) if size is None else size)
        return (source.contiguous(),)

    return unpad


@bind.register
def _bind_count_saturated(call: CountSaturatedCall) -> Callable[..., tuple]:
    """By torch's own kernels, so that nothing is read back."""
    limit, largest = call.scheme.largest_encoded, torch.finfo(torch.float32).max

    def count_saturated(source: torch.Tensor, scale: torch.Tensor, count: torch.Tensor, *ends: Any) -> tuple:
        factor = scale if call.scheme.source == "divisor" else 1 / scale
        encoded = source.detach().float() * factor.clamp(max=largest)
        is_saturated = encoded.abs() > limit
        if ends:
            is_saturated &= groups.rows_in_groups(ends[0], len(source))
        return (count + is_saturated.sum(),)

    return count_saturated


@bind.register
def _bind_advance_rng(_call: AdvanceRngCall) -> Callable[..., tuple]:
    def advance_rng(state: torch.Tensor) -> tuple[torch.Tensor]:
        moved = state.clone()
        moved[1:].add_(1)
        return (moved,)

    return advance_rng
