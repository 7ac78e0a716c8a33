"""Which values of a function are gradients, and so the roles of a product's operands: an analysis."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp, GroupedMatmulOp
from steelyard.dialect.matmul import GemmOp, MatmulOp
from steelyard.formats.gemms import OPERAND_ROLES, Role
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


def operand_roles(
    op: MatmulOp | GemmOp | GroupedMatmulOp | GroupedGemmOp, gradients: set[ir.Value]
) -> tuple[Role, Role]:
    """The roles of lhs and rhs. A product with batch dims has no weight, and may have a gradient on either side."""
    if isinstance(op, GroupedMatmulOp | GroupedGemmOp) or not op.batch_dims.value:
        return OPERAND_ROLES[op.kind.value]
    return _batched_role(op.lhs, gradients), _batched_role(op.rhs, gradients)


def is_batched_gradient(view: ir.OpView, gradients: set[ir.Value]) -> bool:
    """Whether a batched product is the gradient of an operand of another; the IR calls every product of rows fprop."""
    if not isinstance(view, GemmOp | MatmulOp) or not view.batch_dims.value:
        return False
    return "grad_output" in operand_roles(view, gradients)


def _batched_role(operand: ir.Value, gradients: set[ir.Value]) -> Role:
    return "grad_output" if operand in gradients else "input"
