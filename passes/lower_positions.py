"""`scaled-lower-positions`."""

from typing import NamedTuple

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import SIZE, Declarations, PositionsCall, Slot
from steelyard.ir.torch_ops import constant_int, defining_op, info_of, is_none, op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_ADD, _ADD_NUMBER, _COUNT = "torch.aten.add.Tensor", "torch.aten.add.Scalar", "torch.aten.arange"


@register_pass
def lower_positions(module: ir.Operation, *, target: str) -> None:
    """Turn the numbers of tokens in a cache into calls of the CPU's own kernel.

    Takes `torch.aten.add` of one 64-bit integer in a tensor and of `torch.aten.arange` from 0, whose end may be known
    only at run time, or of a constant: a cache of fixed size counts its tokens so, and says where the next ones go.
    Leaves calls of a declared kernel `positions`, so that a decoding step is one tape. On other targets than the CPU
    nothing changes.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for function in functions_of(module):
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            counted = _counted(op)
            if counted is not None:
                _replace(op, counted, declarations)


class _Counted(NamedTuple):
    """Numbers that count on from one in a tensor."""

    start: ir.Value
    offset: int = 0
    counts: ir.Operation | None = None
    """The range that is added to it; None for one number."""


def _counted(op: ir.Operation) -> _Counted | None:
    """What an op counts; None of any other op."""
    if op_name(op) not in (_ADD, _ADD_NUMBER) or constant_int(op.operands[2]) != 1 or not _is_integers(op.results[0]):
        return None
    first, second, _ = op.operands
    if op_name(op) == _ADD_NUMBER:
        offset = constant_int(second)
        is_one = _is_integers(first, rank=0) and _is_integers(op.results[0], rank=0)
        return _Counted(first, offset) if offset is not None and is_one else None
    for start, counted in ((first, second), (second, first)):
        count = defining_op(counted)
        is_counted = count is not None and _is_range(count) and counted.type == op.results[0].type
        if is_counted and _is_integers(start, rank=0):
            return _Counted(start, counts=count)
    return None


def _is_range(op: ir.Operation) -> bool:
    """Whether an op counts from 0 in integers of 64 bits."""
    return op_name(op) == _COUNT and is_none(op.operands[1]) and _is_integers(op.results[0], rank=1)


def _is_integers(value: ir.Value, rank: int | None = None) -> bool:
    info = info_of(value)
    return info is not None and info.dtype in ("si64", "i64") and rank in (None, len(info.shape))


def _replace(op: ir.Operation, counted: _Counted, declarations: Declarations) -> None:
    """Call a kernel in place of an op; nothing changes where it would break a rule."""
    operands = [counted.start]
    slots = [Slot("start", counted.start.type)]
    info = info_of(op.results[0])
    if counted.counts is not None and info is not None and None in info.shape:
        operands.append(counted.counts.operands[0])
        slots.append(Slot(SIZE, operands[-1].type))
    call = PositionsCall(
        operands=tuple(slots),
        results=(Slot("result", op.results[0].type),),
        device="cpu",
        has_destinations=True,
        offset=counted.offset,
    )
    try:
        call.check()
    except ConstraintError:
        return
    with ir.InsertionPoint(op), op.location:
        (made,) = declarations.call(call, operands)
    op.results[0].replace_all_uses_with(made)
    op.erase()
    if counted.counts is not None and not list(counted.counts.results[0].uses):
        counted.counts.erase()
