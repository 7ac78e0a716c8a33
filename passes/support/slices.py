"""Copies of a value with what makes it."""

from torch_mlir import ir

from steelyard.ir.torch_ops import defining_op


def clone_slice(value: ir.Value, copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """Copy the op that makes a value, and those that make its operands, but for what has a copy; returns the copy."""
    if value in copies:
        return copies[value]
    op = defining_op(value)
    assert op is not None, "every argument that it depends on has a copy"
    operands = [clone_slice(operand, copies) for operand in op.operands]
    clone = op.clone()
    for index, operand in enumerate(operands):
        clone.operands[index] = operand
    for old, new in zip(op.results, clone.results, strict=True):
        copies[old] = new
    return copies[value]
