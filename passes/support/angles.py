"""Cosines and sines computed from no kernel's results other than positions.

torch computes them before what is ours: their last bits are those of a net in blocks, which leaves them to torch.
"""

from collections.abc import Collection

from torch_mlir import ir

from steelyard.ir.attributes import KERNEL
from steelyard.ir.kernel_calls import PositionsCall, callee_of, declarations_of
from steelyard.ir.torch_ops import defining_op, op_name

_CIRCULAR = ("torch.aten.cos", "torch.aten.sin")


def angles_of_inputs(function: ir.Operation) -> set[ir.Value]:
    """The cosines and sines of what no kernel made, and all that they are computed from."""
    found: set[ir.Value] = set()
    positions = {symbol for symbol, call in declarations_of(function.parent).items() if _counts(call)}
    for op in function.regions[0].blocks[0].operations:
        if op_name(op.operation) in _CIRCULAR:
            found |= _of_inputs(op.operation, positions)
    return found


def _counts(declaration: ir.Operation) -> bool:
    return ir.StringAttr(declaration.attributes[KERNEL]).value == PositionsCall.OPERATION


def _of_inputs(last: ir.Operation, positions: Collection[str]) -> set[ir.Value]:
    """The results of an op and of those before it; none if a kernel is among them that does not number positions."""
    found: set[ir.Value] = set()
    waiting = [last]
    while waiting:
        op = waiting.pop()
        callee = callee_of(op)
        if callee is not None and callee not in positions:
            return set()
        found.update(op.results)
        makers = (defining_op(value) for value in op.operands if value not in found)
        waiting += [maker for maker in makers if maker is not None]
    return found
