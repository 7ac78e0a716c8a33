"""`scaled-hoist-weights`."""

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp
from steelyard.passes.registry import register_pass
from steelyard.passes.torch_ops import PARAMETER, defining_op, parameter_of, view_root, walk_ops

WEIGHT = "scaled.weight"
"""Argument attribute: the function that makes the argument from a parameter."""
SOURCE = "scaled.source"
"""Argument attribute beside it: which argument that parameter is."""


@register_pass
def hoist_weights(module: ir.Operation) -> None:
    """Move the quantization of parameters out of the step.

    Takes `scaled.quantize` of a value that is a view, a transpose or a cast of a parameter. Leaves each in a function
    of its own, `@weight_0` and so on, from the parameter to the quantized tensor, and an argument in its place that
    names that function (`scaled.weight`) and the parameter's place among the arguments (`scaled.source`). Whoever
    calls the program may keep the function's result until the parameter changes. Quantizations with state stay.
    """
    count = 0
    for op in walk_ops(module):
        if isinstance(op.opview, QuantizeOp) and _is_of_parameter(op.opview):
            _hoist(module, op.opview, f"weight_{count}")
            count += 1


def _is_of_parameter(op: QuantizeOp) -> bool:
    stateless = len(op.operands) == 1 and op.new_amax is None
    return stateless and parameter_of(op.source) is not None


def _hoist(module: ir.Operation, op: QuantizeOp, name: str) -> None:
    argument = ir.BlockArgument(view_root(op.source))
    parameter = parameter_of(op.source)
    assert parameter is not None
    _make_function(module, op, argument, name, parameter)
    attributes = {
        PARAMETER: ir.StringAttr.get(parameter),
        WEIGHT: ir.FlatSymbolRefAttr.get(name),
        SOURCE: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), argument.arg_number),
    }
    op.result.replace_all_uses_with(_add_argument(argument.owner, op.result.type, op.location, attributes))
    op.operation.erase()


def _make_function(module: ir.Operation, op: QuantizeOp, argument: ir.BlockArgument, name: str, parameter: str) -> None:
    """A function that makes the quantized tensor from the parameter, by the ops that do so now."""
    body = module.regions[0].blocks[0]
    function_type = ir.FunctionType.get([argument.type], [op.result.type])
    parameter_name = ir.DictAttr.get({PARAMETER: ir.StringAttr.get(parameter)})
    function = ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(function_type),
            "arg_attrs": ir.ArrayAttr.get([parameter_name]),
        },
        loc=op.location,
        ip=ir.InsertionPoint(body),
    )
    block = ir.Block.create_at_start(function.regions[0], [argument.type], [op.location])
    with ir.InsertionPoint(block):
        result = _clone_slice(op.result, {argument: block.arguments[0]})
        ir.Operation.create("func.return", operands=[result], loc=op.location)


def _clone_slice(value: ir.Value, copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """Copy the op that makes a value, and those that make its operands; returns the copy's value."""
    if value in copies:
        return copies[value]
    op = defining_op(value)
    assert op is not None, "a quantized parameter depends on nothing but the parameter"
    operands = [_clone_slice(operand, copies) for operand in op.operands]
    clone = op.clone()
    for index, operand in enumerate(operands):
        clone.operands[index] = operand
    for old, new in zip(op.results, clone.results, strict=True):
        copies[old] = new
    return copies[value]


def _add_argument(block: ir.Block, type_: ir.Type, location: ir.Location, attributes: dict) -> ir.Value:
    """Append an argument to a function."""
    function = block.owner
    argument = block.add_argument(type_, location)
    old_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    new_type = ir.FunctionType.get([*old_type.inputs, type_], old_type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(new_type)
    others = ir.ArrayAttr(function.attributes["arg_attrs"])
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*others, ir.DictAttr.get(attributes)])
    return argument
