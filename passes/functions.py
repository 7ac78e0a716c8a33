"""Functions as values of a pass: their arguments and what they say of themselves."""

from collections.abc import Mapping

from torch_mlir import ir

PARAMETER = "scaled.parameter"
"""Argument attribute: the name of the parameter that the argument is."""
STATE = "scaled.state"
"""Argument attribute: the name of the state that the argument is, as in `mlp.up.input.scale`."""


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """The attributes of each argument of a function."""
    if "arg_attrs" not in function.attributes:
        return [{} for _ in _function_type(function).inputs]
    dictionaries = ir.ArrayAttr(function.attributes["arg_attrs"])
    return [{entry.name: entry.attr for entry in ir.DictAttr(one)} for one in dictionaries]


def argument_name(argument: ir.BlockArgument, attribute: str) -> str | None:
    """The name that an attribute gives to an argument of a function."""
    found = argument_attributes(argument.owner.owner)[argument.arg_number].get(attribute)
    return None if found is None else ir.StringAttr(found).value


def add_argument(
    block: ir.Block, type_: ir.Type, location: ir.Location, attributes: Mapping[str, ir.Attribute]
) -> ir.BlockArgument:
    """Append an argument to the function whose first block this is."""
    function = block.owner
    known = argument_attributes(function)
    argument = block.add_argument(type_, location)
    old = _function_type(function)
    new = ir.FunctionType.get([*old.inputs, type_], old.results)
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(dict(one)) for one in [*known, attributes]])
    return argument


def make_private_function(
    module: ir.Operation, name: str, arguments: list[ir.BlockArgument], result: ir.Type, location: ir.Location
) -> ir.Block:
    """A new function with arguments like these; returns its empty block."""
    attributes = [argument_attributes(a.owner.owner)[a.arg_number] for a in arguments]
    types = [argument.type for argument in arguments]
    function = ir.Operation.create(
        "func.func",
        regions=1,
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [result])),
            "arg_attrs": ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes]),
        },
        loc=location,
        ip=ir.InsertionPoint(module.regions[0].blocks[0]),
    )
    return ir.Block.create_at_start(function.regions[0], types, [location] * len(types))


def _function_type(function: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
