"""`scaled-hoist-weights`."""

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp
from steelyard.ir.attributes import PARAMETER, SOURCES, WEIGHT
from steelyard.ir.functions import add_argument, make_private_function
from steelyard.ir.torch_ops import defining_op, erase_unused_views, parameter_of, view_root, walk_ops
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def hoist_weights(module: ir.Operation) -> None:
    """Move the quantization of parameters out of the step.

    Takes `scaled.quantize` of a view, a transpose or a cast of a parameter. Leaves each in a function of its own,
    `@weight_0` and so on, which takes the parameter (and the scale, where it is state) and returns the quantized
    tensor. In its place the program has an argument that names the function (`scaled.weight`) and the arguments that
    the function takes (`scaled.sources`). The caller may keep the result of the function until one of those changes.
    An amax that the quantize returns becomes another argument. Quantizations that take random bits stay.
    """
    count = 0
    for op in walk_ops(module):
        if isinstance(op.opview, QuantizeOp) and _is_of_parameter(op.opview):
            _hoist(module, op.opview, f"weight_{count}")
            count += 1


def _is_of_parameter(op: QuantizeOp) -> bool:
    if op.rng is not None or parameter_of(op.source) is None:
        return False
    return all(isinstance(operand, ir.BlockArgument) for operand in list(op.operands)[1:])


def _hoist(module: ir.Operation, op: QuantizeOp, name: str) -> None:
    source = ir.BlockArgument(view_root(op.source))
    parameter = parameter_of(op.source)
    assert parameter is not None
    arguments = [source, *(ir.BlockArgument(operand) for operand in list(op.operands)[1:])]
    types = [result.type for result in op.results]
    block = make_private_function(module, name, arguments, types, op.location)
    with ir.InsertionPoint(block):
        copies = dict(zip(arguments, block.arguments, strict=True))
        results = [_clone_slice(result, copies) for result in op.results]
        ir.Operation.create("func.return", operands=results, loc=op.location)
    attributes = {
        PARAMETER: ir.StringAttr.get(parameter),
        WEIGHT: ir.FlatSymbolRefAttr.get(name),
        SOURCES: ir.DenseI64ArrayAttr.get([argument.arg_number for argument in arguments]),
    }
    for result in op.results:
        result.replace_all_uses_with(add_argument(source.owner, result.type, op.location, attributes))
    viewed = op.source
    op.operation.erase()
    erase_unused_views(viewed)


def _clone_slice(value: ir.Value, copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """Copy the op that makes a value, and those that make its operands; returns the copy's value."""
    if value in copies:
        return copies[value]
    op = defining_op(value)
    assert op is not None, "a quantized parameter depends on nothing but the parameter and its state"
    operands = [_clone_slice(operand, copies) for operand in op.operands]
    clone = op.clone()
    for index, operand in enumerate(operands):
        clone.operands[index] = operand
    for old, new in zip(op.results, clone.results, strict=True):
        copies[old] = new
    return copies[value]
