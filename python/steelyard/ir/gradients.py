"""Which values of a function are gradients: an analysis."""

from torch_mlir import ir

from steelyard.ir.attributes import TANGENT
from steelyard.ir.functions import argument_attributes


def find_gradients(function: ir.Operation) -> set[ir.Value]:
    """The values that depend on a tangent."""
    block = function.regions[0].blocks[0]
    pairs = zip(block.arguments, argument_attributes(function), strict=True)
    gradients: set[ir.Value] = {argument for argument, attributes in pairs if TANGENT in attributes}
    if not gradients:
        return gradients
    for op in block.operations:
        if any(operand in gradients for operand in op.operands):
            gradients.update(op.results)
    return gradients
