"""Kernels of the CPU, bound to a program: no argument is checked, because the program made them all.

Each binding gives `run` and `allocate`. With `allocate`, which makes a call's results from its operands, `run` takes
the operands and then the results; parts of quantized tensors are addresses to `run`. Without, it takes tensors and
returns the results.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from math import prod
from typing import Any

import torch

from steelyard.dialect.types import format_shape
from steelyard.errors import UnsupportedModelError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes, stored_shape
from steelyard.ir.kernel_calls import (
    AddRowsCall,
    AdvanceRngCall,
    AmaxCall,
    AttentionBackwardCall,
    AttentionCall,
    ColumnsCall,
    ConcatenateCall,
    CopyCall,
    CopySlots,
    CountSaturatedCall,
    DequantizeCall,
    ElementwiseCall,
    GemmCall,
    GemmOperand,
    GroupedGemmCall,
    GroupedPackCall,
    GroupedQuantizeCall,
    KernelCall,
    LookupCall,
    MeasureInfluenceCall,
    MeasureProductCall,
    MeasureQuantizeCall,
    NormBackwardCall,
    NormCall,
    PackCall,
    PositionsCall,
    ProduceQuantizeCall,
    QuantizeCall,
    QuantizingCall,
    RowsCall,
    SwitchCall,
    TransposeCall,
    UpdateScaleCall,
    WriteRowsCall,
    matrix_shape,
)
from steelyard.runtime import _cpu, dtypes
from steelyard.runtime.cpu import bound_groups, bound_measures, decoding, delayed, producers, saturation
from steelyard.runtime.cpu.arguments import ACTIVATIONS, ROW_FUNCTIONS, scheme_bits
from steelyard.runtime.cpu.attention_backward import empty_gradient
from steelyard.runtime.cpu.elementwise import bind_program, row_major
from steelyard.runtime.cpu.gemm import PACKED
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.runtime.quantizers import Quantizers, own_algorithm
from steelyard.runtime.ranks import largest_amaxes, largest_of_ranks

_NOWHERE = -1
"""The place of a value that a call does not have."""

Bound = tuple[Callable, Callable | None]


@singledispatch
def bind(call: KernelCall, quantizers: Quantizers) -> Bound:
    """The functions of a call; each operation that the CPU has kernels for registers its own."""
    raise UnsupportedModelError(f"the CPU has no kernel for '{call.OPERATION}'")


bind.register(GroupedQuantizeCall, bound_groups.bind_quantize)
bind.register(GroupedPackCall, bound_groups.bind_pack)
bind.register(GroupedGemmCall, bound_groups.bind_gemm)
bind.register(MeasureQuantizeCall, bound_measures.bind_quantize)
bind.register(MeasureProductCall, bound_measures.bind_product)
bind.register(MeasureInfluenceCall, bound_measures.bind_influence)
bind.register(SwitchCall, bound_measures.bind_switch)


def _destination(copy: CopySlots | None) -> tuple | None:
    """A copy that a kernel makes, as the native module takes it."""
    if copy is None:
        return None
    amax = _NOWHERE if copy.amax is None else copy.amax
    has_plain_amax = amax != _NOWHERE and producers.has_plain_amax(copy.scheme)
    return scheme_bits(copy.scheme), copy.scheme.epsilon, copy.codes, copy.scales, amax, has_plain_amax


def _place(position: int | None) -> int:
    return _NOWHERE if position is None else position


@bind.register
def _bind_quantize(call: QuantizeCall, _: Quantizers) -> Bound:
    row, col = map(_destination, call.copies)
    run = _cpu.bound_quantize(TENSORS, row, col, _place(call.scale), _place(call.rng), None, False)
    return run, _allocate_copies(call)


@bind.register
def _bind_produce_quantize(call: ProduceQuantizeCall, _: Quantizers) -> Bound:
    row, col = map(_destination, call.copies)
    producer = producers.describe(call.producer, call.inputs.start or 0, call.epsilon)
    finds_amax = any(producers.finds_amax(scheme, call.scale, None) for scheme in call.schemes)
    keeps = finds_amax and producers.is_costly(call.producer)
    run = _cpu.bound_quantize(TENSORS, row, col, _place(call.scale), _NOWHERE, producer, keeps)
    return run, _allocate_copies(call)


def _allocate_copies(call: QuantizingCall) -> Callable:
    copies = call.made_copies

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        shape = source.shape[:-1].numel(), source.shape[-1]
        return tuple(
            torch.empty([size or 0 for size in sizes], dtype=dtypes.DTYPES[dtype])
            for copy in copies
            for sizes, dtype in part_shapes(copy.scheme, shape, copy.columnwise).values()
        )

    return allocate


def _operand(operand: GemmOperand | None) -> tuple | None:
    """An operand of a GEMM, as the native module takes it."""
    if operand is None:
        return None
    copy, lead, columns = operand.copy, operand.shape[:-1], operand.shape[-1]
    assert columns is not None, "rows of operands have a known length"
    bits = scheme_bits(replace(copy.scheme, layout="compact")) | (PACKED if copy.is_packed else 0)
    parts = (_NOWHERE, _NOWHERE) if copy.is_packed else (copy.scales, _place(copy.amax))
    known = prod(size for size in lead if size is not None)
    return bits, copy.columnwise, copy.codes, *parts, known, None in lead, columns


@bind.register
def _bind_gemm(call: GemmCall, _: Quantizers) -> Bound:
    if call.batch_dims:
        return _bind_batched_gemm(call)
    lhs, rhs = _operand(call.left), _operand(call.right)
    places = [_place(position) for position in (call.bias, call.residual, call.out, call.preactivation)]
    sizes = call.sizes.start or 0, call.sizes.stop or 0
    run = _cpu.bound_gemm(TENSORS, lhs, rhs, *places, ACTIVATIONS[call.epilogue], *sizes)
    return run, _allocate_products(call)


def _bind_batched_gemm(call: GemmCall) -> Bound:
    """One product for each entry of the batch dims; blocks of scales run along rows, so that each has its own."""
    batch_dims, shape, runtime_sizes = call.batch_dims, call.lhs_shape, call.sizes
    left, right = ((scheme_bits(copy.scheme), copy.codes, copy.scales, _place(copy.amax)) for copy in call.read_copies)
    _, _, reduced = call.product_sizes
    (dtype,), solved = _result_dtypes(call), call.solved_dim
    left_codes, right_codes = (copy.codes for copy in call.read_copies)
    known = prod(size for size in shape[:-1] if size is not None)
    unknown, given = shape[:-1].count(None), len(call.operands[runtime_sizes])
    if unknown > given and solved is None:
        raise UnsupportedModelError(
            f"a product of a batch of {format_shape(shape)}, kept for the backward, must have at most one size that is "
            f"known only at run time, got {unknown}; compile the model with fewer dynamic sizes"
        )

    def allocate(*operands: Any) -> tuple[torch.Tensor]:
        sizes = iter(operands[runtime_sizes] if solved is None else [operands[left_codes].shape[0] // (known or 1)])
        lead = [next(sizes) if size is None else size for size in shape[:-1]]
        count = prod(lead[:batch_dims])
        return (torch.empty((*lead, operands[right_codes].shape[0] // count if count else 0), dtype=dtype),)

    return _cpu.bound_batched_gemm(TENSORS, left, right, call.out, batch_dims, reduced), allocate


def _result_dtypes(call: KernelCall) -> list[torch.dtype]:
    return [dtypes.result_dtype(slot.type) for slot in call.results]


def _allocate_products(call: KernelCall) -> Callable:
    """Memory for results whose unknown sizes are the call's own sizes."""
    shapes, types = [dtypes.shape_of(slot.type) for slot in call.results], _result_dtypes(call)
    runtime_sizes = call.sizes

    def allocate(*operands: Any) -> tuple[torch.Tensor, ...]:
        made = []
        for shape, dtype in zip(shapes, types, strict=True):
            sizes = iter(operands[runtime_sizes])
            made.append(torch.empty([next(sizes) if size is None else size for size in shape], dtype=dtype))
        return tuple(made)

    return allocate


@bind.register
def _bind_transpose(call: TransposeCall, _: Quantizers) -> Bound:
    made, sizes = call.made_copy, call.sizes
    source = _operand(GemmOperand(call.shape, call.copy))
    parts = made.codes, made.scales, _place(made.amax)
    run = _cpu.bound_transpose(TENSORS, source, *parts, sizes.start or 0, sizes.stop or 0)
    known = prod(size for size in call.shape[:-1] if size is not None)
    columns = call.shape[-1]

    def allocate(*operands: Any) -> tuple[torch.Tensor, ...]:
        shape = known * prod(operands[sizes]), columns
        return tuple(
            torch.empty([size or 0 for size in own], dtype=dtypes.DTYPES[dtype])
            for own, dtype in part_shapes(made.scheme, shape, made.columnwise).values()
        )

    return run, allocate


@bind.register
def _bind_pack(call: PackCall, _: Quantizers) -> Bound:
    rows, columns = (size or 0 for size in matrix_shape(call.shape, "shape"))
    copies = []
    for read, made in call.pairs:
        parts = (read.codes, read.scales, read.places.get("amax"))
        stored = stored_shape(read.scheme, (rows, columns), read.columnwise)
        copies.append((scheme_bits(read.scheme), parts, stored, made.codes))

    def pack(*values: Any) -> None:
        for bits, parts, stored, packed in copies:
            pointers = (0 if part is None else values[part] for part in parts)
            _cpu.pack_weight((bits, *pointers, *stored), values[packed])

    return pack, _allocate_products(call)


@bind.register
def _bind_dequantize(call: DequantizeCall, _: Quantizers) -> Bound:
    if call.has_destinations:
        source, sizes = _operand(GemmOperand(call.shape, call.copy)), call.sizes
        run = _cpu.bound_dequantize(TENSORS, source, len(call.operands), sizes.start or 0, sizes.stop or 0)
        return run, _allocate_products(call)
    read, shape, runtime_sizes = _bind_copy(call), call.shape, call.sizes
    (dtype,) = _result_dtypes(call)

    def dequantize(*values: Any) -> tuple[torch.Tensor]:
        lead = iter(values[runtime_sizes])
        made = decoding.dequantize(read(values), dtype)
        return (made.view([next(lead) if size is None else size for size in shape]),)

    return dequantize, None


def _bind_copy(call: CopyCall) -> Callable[[tuple], QuantizedCopy]:
    """The copy that a call reads, from its values."""
    copy, runtime_sizes = call.copy, call.sizes
    codes, scales, amax = copy.codes, copy.scales, copy.amax
    known = prod(size for size in call.shape[:-1] if size is not None)
    columns = call.shape[-1] or 0

    def read(values: tuple) -> QuantizedCopy:
        shape = known * prod(values[runtime_sizes]), columns
        own = None if amax is None else values[amax]
        return QuantizedCopy(values[codes], values[scales], own, copy.scheme, shape, copy.columnwise)

    return read


@bind.register
def _bind_amax(call: AmaxCall, _: Quantizers) -> Bound:
    per_row = call.per_row

    def allocate(source: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.empty(source.shape[:-1] if per_row else ()),)

    return _cpu.bound_amax(TENSORS, call.rht, per_row), allocate


@bind.register
def _bind_attention(call: AttentionCall, _: Quantizers) -> Bound:
    names = (
        ("key", "value", "", "") if call.cached is None else ("key.codes", "value.codes", "key.scales", "value.scales")
    )
    read = [_place(call.operand(name)) for name in ("query", *names, "new_key", "new_value", "mask")]
    made = [_place(call.result(name)) for name in ("result", "logsumexp")]
    run = _cpu.bound_attention(TENSORS, *read, *made, call.scale, call.causal)
    dtype = _result_dtypes(call)[0]

    def allocate(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batch, heads, queries, size = query.shape
        out = torch.empty((batch, queries, heads, size), dtype=dtype)
        return out.transpose(1, 2), torch.empty((batch, queries, heads)).transpose(1, 2)

    return run, allocate


@bind.register
def _bind_concatenate(call: ConcatenateCall, _: Quantizers) -> Bound:
    dim, dtype = call.dim, _result_dtypes(call)[0]

    def allocate(*parts: torch.Tensor) -> tuple[torch.Tensor]:
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        return (torch.empty(shape, dtype=dtype),)

    return _cpu.bound_concatenate(TENSORS, len(call.operands), dim), allocate


@bind.register
def _bind_lookup(call: LookupCall, _: Quantizers) -> Bound:
    dtype = _result_dtypes(call)[0]

    def allocate(table: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.empty((*indices.shape, table.shape[1]), dtype=dtype),)

    return _cpu.bound_lookup(TENSORS, 0, 1, 2), allocate


@bind.register
def _bind_positions(call: PositionsCall, _: Quantizers) -> Bound:
    return _cpu.bound_positions(TENSORS, 0, len(call.operands), call.offset), _allocate_products(call)


@bind.register
def _bind_write_rows(call: WriteRowsCall, _: Quantizers) -> Bound:
    return _cpu.bound_write_rows(TENSORS, 0, 1, 2, 3, call.dim), _allocate_like_source


def _allocate_like_source(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
    return (torch.empty(source.shape, dtype=source.dtype),)


@bind.register
def _bind_add_rows(call: AddRowsCall, _: Quantizers) -> Bound:
    return _cpu.bound_add_rows(TENSORS, 0, 1, 2, call.padding), _allocate_products(call)


@bind.register
def _bind_norm(call: NormCall, _: Quantizers) -> Bound:
    count = len(call.operands)
    producer = producers.describe(call.kind, 0, call.epsilon, vectors=count - 1)
    if not call.is_for_gradients:
        return _cpu.bound_produce(TENSORS, producer, count), _allocate_like_source
    types = _result_dtypes(call)[1:]

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        ones = [torch.empty((*source.shape[:-1], 1), dtype=dtype) for dtype in types]
        return torch.empty(source.shape, dtype=source.dtype), *ones

    return _cpu.bound_layer_norm(TENSORS, producer, count, count + 1, count + 2), allocate


@bind.register
def _bind_norm_backward(call: NormBackwardCall, _: Quantizers) -> Bound:
    made = [_place(call.result(name)) for name in ("grad_source", "grad_weight", "grad_bias")]
    names, types = [slot.name for slot in call.results], _result_dtypes(call)

    def allocate(_grad: torch.Tensor, source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        shapes = [source.shape if name == "grad_source" else source.shape[-1:] for name in names]
        return tuple(torch.empty(shape, dtype=dtype) for shape, dtype in zip(shapes, types, strict=True))

    return _cpu.bound_norm_backward(TENSORS, 0, 1, 2, 3, _place(call.operand("weight")), *made), allocate


@bind.register
def _bind_rows(call: RowsCall, _: Quantizers) -> Bound:
    dtype, keeps_row, keeps_dim = _result_dtypes(call)[0], call.function == "softmax", call.keeps_dim

    def allocate(source: torch.Tensor) -> tuple[torch.Tensor]:
        shape = source.shape if keeps_row else (*source.shape[:-1], *([1] if keeps_dim else []))
        return (torch.empty(shape, dtype=dtype),)

    return _cpu.bound_rows(TENSORS, ROW_FUNCTIONS[call.function], 0, 1), allocate


@bind.register
def _bind_columns(call: ColumnsCall, _: Quantizers) -> Bound:
    dtype, ones = _result_dtypes(call)[0], [1] * (call.dims if call.keeps_dims else 0)

    def allocate(source: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.empty((*ones, *source.shape[call.dims :]), dtype=dtype),)

    return _cpu.bound_columns(TENSORS, call.function == "mean", call.dims, 0, 1), allocate


@bind.register
def _bind_elementwise(call: ElementwiseCall, _: Quantizers) -> Bound:
    strides = {name: row_major(shape) if name in call.addressed else None for name, shape in call.shapes.items()}
    return bind_program(call.parsed, call.dtypes, strides, call.sizes), _allocate_products(call)


@bind.register
def _bind_attention_backward(call: AttentionBackwardCall, _: Quantizers) -> Bound:
    run = _cpu.bound_attention_backward(TENSORS, _place(call.mask), len(call.operands), call.scale, call.causal)

    def allocate(_grad_out: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(map(empty_gradient, given[:3]))

    return run, allocate


@bind.register
def _bind_update_scale(call: UpdateScaleCall, quantizers: Quantizers) -> Bound:
    if call.has_destinations:
        largest = delayed.largest_code(call.scheme, call.margin)
        is_newest = call.algorithm == "most_recent"
        rule = is_newest, largest, call.scheme.epsilon, call.scheme.power_of_two
        run = _cpu.bound_update_scale(TENSORS, *rule, largest_amaxes if call.reduce else None)
        return run, _allocate_state
    algorithm = own_algorithm(call, quantizers) or call.algorithm

    def update_scale(scale: torch.Tensor, history: torch.Tensor, amax: torch.Tensor) -> tuple:
        history = history.clone()
        history[0] = largest_of_ranks(amax) if call.reduce else amax
        return delayed.update_scale(scale, history, call.scheme, margin=call.margin, algorithm=algorithm)

    return update_scale, None


def _allocate_state(scale: torch.Tensor, history: torch.Tensor, _amax: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(scale.shape), torch.empty(history.shape)


@bind.register
def _bind_count_saturated(call: CountSaturatedCall, _: Quantizers) -> Bound:
    scheme = call.scheme

    def count_saturated(source: torch.Tensor, scale: torch.Tensor, count: torch.Tensor, *ends: Any) -> tuple:
        rows = source.detach()[: ends[0][-1]] if ends else source.detach()
        return (count + saturation.count_saturated(rows, scale, scheme),)

    return count_saturated, None


@bind.register
def _bind_advance_rng(_call: AdvanceRngCall, _: Quantizers) -> Bound:
    return _cpu.bound_advance_rng(TENSORS), _allocate_like_source
