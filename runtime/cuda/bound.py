"""Kernels of CUDA, bound to a program: no argument is checked, because the program made them all.

Each binding gives `run` and `allocate`, as those of the CPU do, but all values are tensors. A call launches on torch's
current stream of the device that its operands are on, waits for nothing, reads no value back, and allocates by torch
only: so it can be part of a CUDA graph. Where kernels come from is an argument: the pass that shows a program's kernels
binds the same functions to a recorder.
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from math import prod
from typing import Any

import torch

from steelyard.dialect.produce import NORMS
from steelyard.errors import UnsupportedModelError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import is_stored_transposed, part_shapes, round_up
from steelyard.ir.kernel_calls import (
    AdvanceRngCall,
    AmaxCall,
    ComputeScaleCall,
    CopyCall,
    CopySlots,
    DequantizeCall,
    EpilogueCall,
    GemmCall,
    GemmOperand,
    KernelCall,
    PadCall,
    ProduceQuantizeCall,
    QuantizeCall,
    SwizzleCall,
    TransposeCall,
    TurnCall,
    UnpadCall,
    UpdateScaleCall,
)
from steelyard.runtime import dtypes
from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.quantizers import Quantizers, own_algorithm
from steelyard.runtime.ranks import largest_of_ranks
from steelyard.targets.gemm_paths import NATIVE

Bound = tuple[Callable, Callable | None]
KernelsOn = Callable[[torch.device], Kernels]


@singledispatch
def bind(call: KernelCall, quantizers: Quantizers, kernels_on: KernelsOn) -> Bound:
    """The functions of a call; each operation that CUDA has kernels for registers its own."""
    raise UnsupportedModelError(f"CUDA has no kernel for '{call.OPERATION}'")


class _Copy:
    """One copy of a quantized tensor, read from the values of a call."""

    def __init__(self, slots: CopySlots):
        self.scheme, self.columnwise = slots.scheme, slots.columnwise
        self._codes, self._scales, self._amax = slots.codes, slots.scales, slots.amax

    def read(self, values: tuple, shape: tuple[int, int]) -> QuantizedCopy:
        """The copy of a matrix of this shape."""
        amax = _at(values, self._amax)
        return QuantizedCopy(values[self._codes], values[self._scales], amax, self.scheme, shape, self.columnwise)

    def operand(self, values: tuple) -> gemm.GemmOperand:
        """The copy as a native GEMM reads it."""
        return gemm.GemmOperand(values[self._codes], values[self._scales], _at(values, self._amax), self.scheme)


def _at(values: tuple, index: int | None) -> Any:
    return None if index is None else values[index]


def _matrix_shape(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.shape[:-1].numel(), tensor.shape[-1]


@bind.register
def _bind_quantize(call: QuantizeCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    copies = [_Copy(slots) for slots in call.made_copies]
    scale, amax, rng = call.scale, call.amax, call.rng

    def quantize(*values: Any) -> None:
        source = values[0]
        made = [copy.read(values, _matrix_shape(source)) for copy in copies]
        kernels_on(source.device).quantize_into(
            source, made, scale=_at(values, scale), amax=_at(values, amax), rng=_at(values, rng)
        )

    return quantize, _allocate_copies(copies)


@bind.register
def _bind_produce_quantize(call: ProduceQuantizeCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    copies = [_Copy(slots) for slots in call.made_copies]
    producer, epsilon, scale, inputs = call.producer, call.epsilon, call.scale, call.inputs
    is_norm = producer in NORMS

    def produce_quantize(*values: Any) -> None:
        given = values[inputs]
        source = producer, (*given, epsilon) if is_norm else given
        made = [copy.read(values, _matrix_shape(values[0])) for copy in copies]
        kernels_on(values[0].device).quantize_into(source, made, scale=_at(values, scale))

    return produce_quantize, _allocate_copies(copies)


def _allocate_copies(copies: list[_Copy]) -> Callable:
    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.empty([size or 0 for size in sizes], dtype=dtypes.DTYPES[dtype], device=source.device)
            for copy in copies
            for sizes, dtype in part_shapes(copy.scheme, _matrix_shape(source), copy.columnwise).values()
        )

    return allocate


class _Operand(_Copy):
    """An operand of a GEMM: a copy of a matrix whose sizes may be known only at run time."""

    def __init__(self, operand: GemmOperand):
        super().__init__(operand.copy)
        lead = operand.shape[:-1]
        self._known = prod(size for size in lead if size is not None)
        self._is_static, self.columns = None not in lead, operand.shape[-1] or 0

    def decode(self, values: tuple, sizes: tuple, kernels: Kernels) -> torch.Tensor:
        """The matrix, its rows along the reduction."""
        rows = self._known if self._is_static else self._known * prod(sizes)
        return gemm.decode(kernels, self.read(values, (rows, self.columns)))


@bind.register
def _bind_gemm(call: GemmCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    if call.batch_dims:
        return _bind_batched_gemm(call, kernels_on)
    lhs, rhs = _Operand(call.left), _Operand(call.right)
    bias, sizes, result = call.bias, call.sizes, call.out
    dtype = dtypes.result_dtype(call.results[0].type)

    def native(*values: Any) -> tuple[torch.Tensor]:
        left, right, own_bias = lhs.operand(values), rhs.operand(values), _at(values, bias)
        if left.codes.shape[1] == 0:
            # No GEMM reduces over nothing.
            empty = torch.zeros((left.codes.shape[0], right.codes.shape[0]), dtype=dtype, device=left.codes.device)
            return (empty if own_bias is None else empty + own_bias,)
        return (gemm.multiply(left, right, bias=own_bias, out_dtype=dtype),)

    def emulated(*values: Any) -> None:
        out = values[result]
        kernels = kernels_on(out.device)
        left, right = (operand.decode(values, values[sizes], kernels) for operand in (lhs, rhs))
        gemm.multiply_decoded(left, right.t(), out.view(-1, out.shape[-1]))

    # torch's scaled_mm makes its result itself.
    return (native, None) if call.path == NATIVE else (emulated, _allocate_results(call))


def _bind_batched_gemm(call: GemmCall, kernels_on: KernelsOn) -> Bound:
    """One product for each entry of the batch dims."""
    lhs, rhs = _Operand(call.left), _Operand(call.right)
    batch_dims, shape, sizes = call.batch_dims, call.lhs_shape, call.sizes
    dtype, right_codes = dtypes.result_dtype(call.results[0].type), call.right.copy.codes

    def batched_gemm(*values: Any) -> tuple[torch.Tensor]:
        given = iter(values[sizes])
        lead = [next(given) if size is None else size for size in shape[:-1]]
        count = prod(lead[:batch_dims])
        kernels = kernels_on(values[0].device)
        left = lhs.decode(values, values[sizes], kernels)
        # The batch dims of both are the same; only the rows of the right may be its own.
        rows = values[right_codes].shape[0]
        right = gemm.decode(kernels, rhs.read(values, (rows, rhs.columns)))
        out = torch.empty((*lead, rows // count if count else 0), dtype=dtype, device=left.device)
        if out.numel():
            left, right = (matrix.view(count, -1, matrix.shape[-1]) for matrix in (left, right))
            gemm.multiply_decoded(left, right.mT, out.view(count, -1, out.shape[-1]))
        return (out,)

    return batched_gemm, None


def _allocate_results(call: KernelCall) -> Callable:
    """Results whose unknown sizes are the call's own sizes."""
    shapes = [dtypes.shape_of(slot.type) for slot in call.results]
    types = [dtypes.result_dtype(slot.type) for slot in call.results]
    sizes = call.sizes

    def allocate(*operands: Any) -> tuple[torch.Tensor, ...]:
        made = []
        for shape, dtype in zip(shapes, types, strict=True):
            given = iter(operands[sizes])
            known = [next(given) if size is None else size for size in shape]
            made.append(torch.empty(known, dtype=dtype, device=operands[0].device))
        return tuple(made)

    return allocate


@bind.register
def _bind_epilogue(call: EpilogueCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    activation, result = call.epilogue, call.out
    places = {
        "bias": call.bias,
        "residual": call.residual,
        "accumulator": call.accumulator,
        "preactivation": call.preactivation,
    }
    taken = {name: place for name, place in places.items() if place is not None}
    types = [dtypes.result_dtype(slot.type) for slot in call.results]

    def epilogue(*values: Any) -> None:
        given = {name: values[place] for name, place in taken.items()}
        kernels_on(values[0].device).epilogue(values[0], values[result], activation=activation, **given)

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty(source.shape, dtype=dtype, device=source.device) for dtype in types)

    return epilogue, allocate


def _bind_copy(call: CopyCall) -> Callable[[tuple], QuantizedCopy]:
    """The copy that a call reads whole, from its values."""
    copy, sizes = _Copy(call.copy), call.sizes
    known, columns = prod(size for size in call.shape[:-1] if size is not None), call.shape[-1] or 0
    return lambda values: copy.read(values, (known * prod(values[sizes]), columns))


@bind.register
def _bind_dequantize(call: DequantizeCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    read, result = _bind_copy(call), len(call.operands)

    def dequantize(*values: Any) -> None:
        out, source = values[result], read(values)
        kernels_on(out.device).dequantize(source, out=out.view(source.shape))

    return dequantize, _allocate_results(call)


@bind.register
def _bind_transpose(call: TransposeCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    read = _bind_copy(call)

    def transpose(*values: Any) -> tuple[torch.Tensor, ...]:
        turned = kernels_on(values[0].device).transpose(read(values))
        return tuple(part for part in (turned.codes, turned.scales, turned.amax) if part is not None)

    return transpose, None


@bind.register
def _bind_turn(_call: TurnCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    def turn(codes: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
        return (kernels_on(codes.device).transpose_codes(codes),)

    return turn, None


@bind.register
def _bind_swizzle(call: SwizzleCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    scheme, columnwise = call.scheme, call.columnwise

    def swizzle(scales: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
        return (kernels_on(scales.device).swizzle_scales(scales, scheme, columnwise=columnwise),)

    return swizzle, None


@bind.register
def _bind_pad(call: PadCall, _: Quantizers, _kernels_on: KernelsOn) -> Bound:
    """Parts of a quantized tensor with zeros behind them, or a plain tensor."""
    multiples, copy, parts = call.multiples, call.copy, call.parts
    if copy is None:
        return (lambda source, *_: (_padded(source, _rounded(source.shape, multiples)),)), None
    scheme, columnwise = copy.scheme, copy.columnwise
    is_turned = is_stored_transposed(scheme, columnwise)

    def pad(codes: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Sizes known only at run time are those of the codes: what fills their last byte is padding too.
        rows, columns = codes.shape[0], codes.shape[1] * (2 if scheme.element == "f4E2M1FN" else 1)
        logical = _rounded((columns, rows) if is_turned else (rows, columns), multiples)
        wanted = part_shapes(scheme, (logical[0], logical[1]), columnwise)
        pairs = zip((codes, *others), parts, strict=True)
        return tuple(_padded(part, wanted[name][0]) for part, name in pairs)

    return pad, None


def _rounded(shape: Iterable[int], multiples: tuple) -> list[int]:
    return [round_up(size, multiple) for size, multiple in zip(shape, multiples, strict=True)]


def _padded(part: torch.Tensor, shape: Iterable[Any]) -> torch.Tensor:
    missing = [wanted - size for size, wanted in zip(part.shape, shape, strict=True)]
    return torch.nn.functional.pad(part, [side for size in reversed(missing) for side in (0, size)])


@bind.register
def _bind_unpad(call: UnpadCall, _: Quantizers, _kernels_on: KernelsOn) -> Bound:
    shape = dtypes.shape_of(call.results[0].type)

    def unpad(source: torch.Tensor, *sizes: int) -> tuple[torch.Tensor]:
        given = iter(sizes)
        for dim, size in enumerate(shape):
            source = source.narrow(dim, 0, next(given) if size is None else size)
        return (source.contiguous(),)

    return unpad, None


@bind.register
def _bind_amax(call: AmaxCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    per_row, rht = call.per_row, call.rht

    def amax(source: torch.Tensor) -> tuple[torch.Tensor]:
        found = kernels_on(source.device).amax(source, rht=rht, per_row=per_row)
        return (found.view(source.shape[:-1] if per_row else ()),)

    return amax, None


@bind.register
def _bind_compute_scale(call: ComputeScaleCall, _: Quantizers, kernels_on: KernelsOn) -> Bound:
    return (lambda amax: (kernels_on(amax.device).compute_scale(amax, call.scheme),)), None


@bind.register
def _bind_update_scale(call: UpdateScaleCall, quantizers: Quantizers, kernels_on: KernelsOn) -> Bound:
    scheme, margin, own = call.scheme, call.margin, own_algorithm(call, quantizers)

    def update_scale(scale: torch.Tensor, history: torch.Tensor, amax: torch.Tensor) -> tuple:
        amax = largest_of_ranks(amax) if call.reduce else amax
        kernels = kernels_on(amax.device)
        if own is None:
            return kernels.update_scale(scale, history, amax, scheme, margin=margin, algorithm=call.algorithm)
        with_newest = history.clone()
        with_newest[0] = amax
        picked = torch.as_tensor(own(with_newest), dtype=torch.float32, device=amax.device).reshape(())
        recent = "most_recent"
        new_scale, _ = kernels.update_scale(scale, history, picked, scheme, margin=margin, algorithm=recent)
        _, new_history = kernels.update_scale(scale, history, amax, scheme, margin=margin, algorithm=recent)
        return torch.where(amax == 0, scale, new_scale), new_history

    return update_scale, None


@bind.register
def _bind_advance_rng(_call: AdvanceRngCall, _: Quantizers, _kernels_on: KernelsOn) -> Bound:
    def advance_rng(state: torch.Tensor) -> tuple[torch.Tensor]:
        moved = state.clone()
        moved[1:].add_(1)
        return (moved,)

    return advance_rng, None
