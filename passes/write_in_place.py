"""`scaled-write-in-place`."""

from torch_mlir import ir

from steelyard.ir.attributes import WRITTEN
from steelyard.ir.functions import argument_attributes, functions_of
from steelyard.ir.torch_ops import defining_op, op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.targets import read_target

_COPIES = {"torch.aten.index_copy": "torch.aten.index_copy_"}
"""Ops that write rows into a copy of their first operand -> the same into the operand itself."""
_ASKS_FOR_SIZES = "torch.aten.size.int"


@register_pass
def write_in_place(module: ir.Operation, *, target: str) -> None:
    """Append to a cache of fixed size where it lies.

    Takes functions whose caller gives an argument new values (`scaled.written`), which are a copy of it with some rows
    replaced (`torch.aten.index_copy`). Leaves `torch.aten.index_copy_`, which writes these rows into the argument and
    is the argument, so that the caller has nothing left to copy: a step costs what its new tokens cost. The copy stays
    where anything else reads the old values. On other targets than the CPU nothing changes.
    """
    if read_target(module, target) is not None:
        return
    for function in functions_of(module):
        block = function.regions[0].blocks[0]
        results = list(list(block.operations)[-1].operands)
        for argument, attributes in zip(block.arguments, argument_attributes(function), strict=True):
            if WRITTEN in attributes:
                value = results[ir.IntegerAttr(attributes[WRITTEN]).value]
                # A result beside it must stay what it is when the caller's tensor changes again.
                if results.count(value) == 1:
                    _write(argument, value)


def _write(argument: ir.BlockArgument, value: ir.Value) -> None:
    op = defining_op(value)
    if op is None or op_name(op) not in _COPIES or op.operands[0] != argument or value.type != argument.type:
        return
    others = [use.owner.operation for use in argument.uses if use.owner.operation != op]
    if any(other.name != _ASKS_FOR_SIZES for other in others) or list(op.operands).count(argument) > 1:
        return
    op.attributes["name"] = ir.StringAttr.get(_COPIES[op_name(op)])
