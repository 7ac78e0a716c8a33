"""`scaled-lower-blocks`."""

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import BlockCall, Declarations, Slot
from steelyard.ir.torch_ops import constant_int, defining_op, op_name
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.targets import read_target

_CALL, _LIST = "torch.steelyard.call_block.", "torch.prim.ListConstruct"


@register_pass
def lower_blocks(module: ir.Operation, *, target: str) -> None:
    """Turn calls of blocks of layers into calls of the CPU's own kernels.

    Takes `torch.steelyard.call_block` of a number, which says which block it is, and of a list of tensors, as a graph
    has it that was recorded around the blocks of a net. Leaves a call of a declared kernel `block`, which runs the
    tape of the block's own program, so that a whole step of a deep model is one tape. On other targets than the CPU
    nothing changes.
    """
    if read_target(module, target) is not None:
        return
    declarations = Declarations(module)
    for function in functions_of(module):
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            if op_name(op).startswith(_CALL):
                _lower(op, declarations)


def _lower(op: ir.Operation, declarations: Declarations) -> None:
    number, listed = _number_and_list(op)
    if number is None or listed is None:
        fail(op, "must have the number of a block and a list of tensors")
    operands = list(listed.operands)
    call = BlockCall(
        operands=tuple(Slot(f"argument{index}", value.type) for index, value in enumerate(operands)),
        results=tuple(Slot(f"result{index}", value.type) for index, value in enumerate(op.results)),
        device="cpu",
        has_destinations=True,
        number=number,
    )
    try:
        with ir.InsertionPoint(op), op.location:
            made = declarations.call(call, operands)
    except ConstraintError as error:
        fail(op, f"cannot be a kernel's call: {error}")
    for old, new in zip(op.results, made, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
    if not list(listed.result.uses):
        listed.erase()


def _number_and_list(op: ir.Operation) -> tuple[int | None, ir.Operation | None]:
    """Which block an op calls, and the op that lists its tensors; None where an operand is not that."""
    if len(op.operands) != 2:
        return None, None
    number, listed = op.operands
    made_by = defining_op(listed)
    return constant_int(number), made_by if made_by is not None and op_name(made_by) == _LIST else None
