"""Cosines and sines that no kernel's results lead to, such as those of positions."""

from torch_mlir import ir

from steelyard.ir.kernel_calls import callee_of
from steelyard.ir.torch_ops import defining_op, op_name

_CIRCULAR = ("torch.aten.cos", "torch.aten.sin")


def angles_of_inputs(function: ir.Operation) -> set[ir.Value]:
    """The cosines and sines of what no kernel made, and all that they are computed from."""
    found: set[ir.Value] = set()
    for op in function.regions[0].blocks[0].operations:
        if op_name(op.operation) in _CIRCULAR:
            found |= _of_inputs(op.operation)
    return found


def _of_inputs(last: ir.Operation) -> set[ir.Value]:
    """The results of an op and of those before it; none if a kernel is among them."""
    found: set[ir.Value] = set()
    waiting = [last]
    while waiting:
        op = waiting.pop()
        if callee_of(op) is not None:
            return set()
        found.update(op.results)
        makers = (defining_op(value) for value in op.operands if value not in found)
        waiting += [maker for maker in makers if maker is not None]
    return found
