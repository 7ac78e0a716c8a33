"""Which ops of a lowered function can be steps of a tape, and how large their results are.

A tape runs kernels and views without Python. What it needs to know of an op is here, for the pass that builds tapes and
for the runtime that makes them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Literal, NamedTuple

from torch_mlir import ir

from steelyard.dialect.types import Shape, tensor_info
from steelyard.errors import InternalError
from steelyard.formats.parts import Part, grouped_part_shapes, is_stored_transposed, part_shapes, shared_rows
from steelyard.ir.kernel_calls import (
    AddRowsCall,
    AdvanceRngCall,
    AmaxCall,
    AttentionBackwardCall,
    AttentionCall,
    BlockCall,
    ColumnsCall,
    ConcatenateCall,
    CopySlots,
    DequantizeCall,
    ElementwiseCall,
    GemmCall,
    GroupedGemmCall,
    GroupedQuantizeCall,
    KernelCall,
    LookupCall,
    NormBackwardCall,
    NormCall,
    PositionsCall,
    ProduceQuantizeCall,
    QuantizeCall,
    RowsCall,
    TransposeCall,
    UpdateScaleCall,
    WriteRowsCall,
)
from steelyard.ir.torch_ops import constant_int, defining_op, is_none, op_name
from steelyard.ir.view_ops import STATIC_CAST

VIEWS = {
    "torch.aten.expand": "expand",
    "torch.aten.permute": "permute",
    "torch.aten.view": "reshape",
    "torch.aten._unsafe_view": "reshape",
    "torch.aten.reshape": "reshape",
    "torch.aten.select.int": "select",
    "torch.aten.slice.Tensor": "slice",
    "torch.aten.squeeze.dim": "squeeze",
    "torch.aten.t": "transpose",
    "torch.aten.transpose.int": "transpose",
    "torch.aten.unsqueeze": "unsqueeze",
    STATIC_CAST: "same",
}
"""What a step calls each op that is a view; `same` is no step at all."""

_T = "torch.aten.t"
_ENDS = 2**63 - 1
_MOST_DIMS = 8


class Size(NamedTuple):
    """A size of a result: a number, or what a call tells of it at run time."""

    kind: Literal["constant", "number", "dim", "rows", "sum", "columns", "grouped"]
    """`number` is an operand of the call, `dim` is a dim of one, `rows` and `columns` are those of one, seen as a
    matrix. `sum` is what a dim of all operands adds up to. `grouped` is the most that rows in groups can need."""
    value: int
    """The constant, or the position of the operand."""
    detail: int = 0
    """Which dim; of rows and columns, how many of them share a block of the result."""
    factor: int = 1
    """How large such a block is."""
    groups: int = 0
    """How many there are."""


def is_view_step(op: ir.Operation) -> bool:
    """Whether an op is a view that a tape can make."""
    if op_name(op) not in VIEWS:
        return False
    values = (*op.operands, *op.results)
    ranks = [len(info.shape) for value in values if (info := tensor_info(value.type)) is not None]
    # torch's `t` hands on a vector, and a tensor without dims, as they are.
    is_there = op_name(op) != _T or ranks == [2, 2]
    return len(ranks) == 2 and max(ranks) <= _MOST_DIMS and is_there


def view_numbers(op: ir.Operation) -> list[int | ir.Value]:
    """The numbers of a view, dims, indices or sizes: constants, or values that are known at run time."""
    name = VIEWS[op_name(op)]
    if name == "same":
        return []
    if op_name(op) == _T:
        return [0, 1]
    operands = list(op.operands)[1:]
    if name in ("expand", "permute", "reshape"):
        sizes = defining_op(operands[0])
        assert sizes is not None, "sizes are a list in the IR"
        operands = list(sizes.operands)
    defaults = {1: 0, 2: _ENDS} if name == "slice" else {}
    return [defaults[i] if is_none(value) else _number(value) for i, value in enumerate(operands)]


def _number(value: ir.Value) -> int | ir.Value:
    known = constant_int(value)
    return value if known is None else known


def is_kernel_step(call: KernelCall) -> bool:
    """Whether a tape can run the calls of a declared kernel."""
    return call.device == "cpu" and call.has_destinations and result_sizes(call) is not None


def result_sizes(call: KernelCall) -> list[list[Size]] | None:
    """The sizes of each result of a call; None if a tape cannot tell them."""
    shapes = [tensor_info(slot.type) for slot in call.results]
    if all(info is not None and None not in info.shape for info in shapes):
        known = type(call) in _RUN_TIME_SIZES
        return [[_constant(size) for size in info.shape] for info in shapes if info is not None] if known else None
    find = _RUN_TIME_SIZES.get(type(call))
    return None if find is None else find(call)


def _constant(size: int | None) -> Size:
    assert size is not None
    return Size("constant", size)


def _product_sizes(call: KernelCall) -> list[list[Size]]:
    """A product's unknown sizes are the sizes that its call takes, in their order."""
    made: list[list[Size]] = []
    for slot in call.results:
        numbers = iter(range(*call.sizes.indices(len(call.operands))))
        info = tensor_info(slot.type)
        assert info is not None
        made.append([Size("number", next(numbers)) if size is None else _constant(size) for size in info.shape])
    return made


def _attention_sizes(_call: KernelCall) -> list[list[Size]]:
    """Those of the query, and of the query without its columns."""
    sizes = [Size("dim", 0, dim) for dim in range(4)]
    return [sizes, sizes[:3]]


def _attention_gradient_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of query, key and value."""
    return [_sizes_of(call, position) for position in (1, 2, 3)]


def _concatenated_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the first part, but for the dim along which all parts add up."""
    assert isinstance(call, ConcatenateCall)
    rank = len(_shape(call.operands[0].type))
    return [[Size("sum" if dim == call.dim else "dim", 0, dim) for dim in range(rank)]]


def _looked_up_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the indices, and the length of a row."""
    rank = len(_shape(call.operands[1].type))
    return [[*(Size("dim", 1, dim) for dim in range(rank)), Size("dim", 0, 1)]]


def _sizes_of(call: KernelCall, position: int) -> list[Size]:
    """Those of an operand."""
    return [Size("dim", position, dim) for dim in range(len(_shape(call.operands[position].type)))]


def _source_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the first operand."""
    return [_sizes_of(call, 0)]


def _amax_sizes(call: KernelCall) -> list[list[Size]]:
    """One number, or one for each row of the source."""
    assert isinstance(call, AmaxCall)
    return [_sizes_of(call, 0)[:-1] if call.per_row else []]


def _state_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the scale and of its history."""
    return [_sizes_of(call, 0), _sizes_of(call, 1)]


def _row_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the source, or one for each row."""
    assert isinstance(call, RowsCall)
    ((*lead, last),) = _source_sizes(call)
    if call.function == "softmax":
        return [[*lead, last]]
    return [[*lead, _constant(1)] if call.keeps_dim else lead]


def _norm_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the source, and one mean and one rstd for each row."""
    (sizes,) = _source_sizes(call)
    return [sizes, *([*sizes[:-1], _constant(1)] for _ in call.results[1:])]


def _norm_gradient_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the source, and of its rows."""
    assert isinstance(call, NormBackwardCall)
    sizes = _sizes_of(call, 1)
    return [sizes if slot.name == "grad_source" else sizes[-1:] for slot in call.results]


def _column_sizes(call: KernelCall) -> list[list[Size]]:
    """Those of the source, without the first ones."""
    assert isinstance(call, ColumnsCall)
    (sizes,) = _source_sizes(call)
    return [[_constant(1)] * (call.dims if call.keeps_dims else 0) + sizes[call.dims :]]


def _shape(type_: ir.Type) -> Shape:
    """The sizes that the type of a tensor states."""
    info = tensor_info(type_)
    assert info is not None
    return info.shape


def _transposed_sizes(call: KernelCall) -> list[list[Size]] | None:
    """The rows of a matrix are those of its codes, unless these are transposed."""
    assert isinstance(call, TransposeCall)
    if is_stored_transposed(call.scheme, call.columnwise):
        return None
    return _part_sizes(call, call.copy.codes)


def _copy_sizes(call: KernelCall) -> list[list[Size]]:
    """The sizes of a quantized tensor's parts follow from the rows of what is quantized."""
    assert isinstance(call, QuantizeCall | ProduceQuantizeCall)
    return _part_sizes(call, call.source)


def _part_sizes(call: KernelCall, source: int) -> list[list[Size]]:
    """The sizes of the parts that a call makes, from the rows and columns of an operand."""
    made: dict[int, list[Size]] = {}
    for copy in call.made_copies:
        for part, place in copy.places.items():
            shape_of = partial(_part_shape, copy, part)
            made[place] = [_part_size(shape_of, dim, copy.shape, source) for dim in range(len(shape_of(1, 1)))]
    return [made[place] for place in sorted(made)]


def _part_shape(copy: CopySlots, part: Part, rows: int, columns: int) -> Shape:
    return part_shapes(copy.scheme, (rows, columns), copy.columnwise)[part][0]


_SHARING = (1, 2, 16, 32, 128)
"""How many rows or columns of a matrix may share what a part stores."""
_SAMPLES = (0, 1, 15, 16, 17, 31, 33, 127, 129, 1000)


def _part_size(
    shape_of: Callable[[int, int], Shape], dim: int, shape: tuple[int | None, int | None], source: int
) -> Size:
    """One size of a part: a constant, or blocks of rows or of columns."""
    rows, columns = (1 if size is None else size for size in shape)
    if shape[0] is None and shape_of(0, columns)[dim] != shape_of(1, columns)[dim]:
        return _blocks("rows", source, lambda count: shape_of(count, columns)[dim] or 0)
    if shape[1] is None and shape_of(rows, 0)[dim] != shape_of(rows, 1)[dim]:
        return _blocks("columns", source, lambda count: shape_of(rows, count)[dim] or 0)
    return _constant(shape_of(rows, columns)[dim])


def _blocks(kind: Literal["rows", "columns"], source: int, size_of: Callable[[int], int]) -> Size:
    """A size that grows by a block with each so many rows or columns."""
    factor = size_of(1)
    for sharing in _SHARING:
        if all(size_of(count) == -(-count // sharing) * factor for count in _SAMPLES):
            return Size(kind, source, sharing, factor)
    raise InternalError(f"parts must grow with their {kind} by blocks of {_SHARING}")


def _grouped_sizes(call: KernelCall) -> list[list[Size]] | None:
    """What the rows of all groups need; of a stack, all is known."""
    assert isinstance(call, GroupedQuantizeCall)
    if call.whole[-1] is None:
        return None
    made: dict[int, list[Size]] = {}
    for copy in call.made_copies:
        shapes = copy.part_shapes()
        for part, place in copy.places.items():
            ((size,), _), shared = shapes[part], shared_rows(copy.scheme, part, copy.columnwise)
            (unit,), _ = grouped_part_shapes(copy.scheme, (1, call.whole[-1]), copy.columnwise, 1)[part]
            grown = Size("grouped", call.source, shared, unit or 0, call.groups)
            made[place] = [grown if size is None else _constant(size)]
    return [made[place] for place in sorted(made)]


def _batched_sizes(call: GemmCall) -> list[list[Size]] | None:
    """Those of lhs, and the rows of rhs that an entry has: its codes have those of all entries."""
    lead, last = call.lhs_shape[:-1], _shape(call.results[0].type)[-1]
    numbers = iter(range(*call.sizes.indices(len(call.operands))))
    known, left = prod(size for size in lead if size is not None), call.read_copies[0]
    solved, count = Size("rows", left.codes, known), prod(size or 0 for size in lead[: call.batch_dims])
    if (last is None and not count) or (call.solved_dim is not None and not known):
        return None
    sizes = [
        _constant(size) if size is not None else solved if dim == call.solved_dim else Size("number", next(numbers))
        for dim, size in enumerate(lead)
    ]
    return [[*sizes, Size("rows", call.right.copy.codes, count) if last is None else _constant(last)]]


def _gemm_sizes(call: KernelCall) -> list[list[Size]] | None:
    assert isinstance(call, GemmCall)
    return _batched_sizes(call) if call.batch_dims else _product_sizes(call)


_RUN_TIME_SIZES: Mapping[type[KernelCall], Callable[[KernelCall], list[list[Size]] | None]] = {
    AddRowsCall: _product_sizes,
    AdvanceRngCall: _source_sizes,
    AmaxCall: _amax_sizes,
    AttentionBackwardCall: _attention_gradient_sizes,
    AttentionCall: _attention_sizes,
    BlockCall: lambda _call: None,
    ColumnsCall: _column_sizes,
    ConcatenateCall: _concatenated_sizes,
    DequantizeCall: _product_sizes,
    ElementwiseCall: _product_sizes,
    GemmCall: _gemm_sizes,
    GroupedGemmCall: _product_sizes,
    GroupedQuantizeCall: _grouped_sizes,
    LookupCall: _looked_up_sizes,
    NormBackwardCall: _norm_gradient_sizes,
    NormCall: _norm_sizes,
    PositionsCall: _product_sizes,
    ProduceQuantizeCall: _copy_sizes,
    QuantizeCall: _copy_sizes,
    RowsCall: _row_sizes,
    TransposeCall: _transposed_sizes,
    UpdateScaleCall: _state_sizes,
    WriteRowsCall: _source_sizes,
}
"""The kernels that a tape can run, and what tells the sizes of their results where types do not: None, if nothing."""
