"""A module for another layer of the same code."""

from torch_mlir import ir

from steelyard.ir.attributes import CONFIG, GRADIENT, LAYER, PARAMETER, STATE, WEIGHT_KEY
from steelyard.ir.locations import layer_of, with_layer
from steelyard.ir.renaming import Renaming
from steelyard.ir.torch_ops import walk_ops
from steelyard.ir.weights import is_weight, renamed_key, weight_key, weight_states


def rename_module(module: ir.Operation, renaming: Renaming) -> None:
    """Give the layers, parameters and states of a module their new names: in attributes and in locations."""
    with module.context:
        for op in walk_ops(module):
            _rename_op(op, renaming)


def _rename_op(op: ir.Operation, renaming: Renaming) -> None:
    op.location = _renamed_location(op.location, renaming)  # pyright: ignore[reportAttributeAccessIssue]
    for region in op.regions:
        for argument in (argument for block in region.blocks for argument in block.arguments):
            argument.set_location(_renamed_location(argument.location, renaming))
    attributes = op.attributes
    for name in ("layer", LAYER):
        layer = attributes.get(name)
        if isinstance(layer, ir.StringAttr) and layer.value:
            attributes[name] = ir.StringAttr.get(renaming.layer(layer.value))
    for name in ("arg_attrs", "res_attrs"):
        if name in attributes:
            dictionaries = [_renamed_facts(ir.DictAttr(one), renaming) for one in ir.ArrayAttr(attributes[name])]
            attributes[name] = ir.ArrayAttr.get(dictionaries)
    if CONFIG in attributes:
        attributes[CONFIG] = _renamed_config(ir.DictAttr(attributes[CONFIG]), renaming)
    if op.name == "func.func" and is_weight(op):
        # Its states have their new names by now.
        attributes[WEIGHT_KEY] = ir.StringAttr.get(renamed_key(weight_key(op), weight_states(op)))


def _renamed_location(location: ir.Location, renaming: Renaming) -> ir.Location:
    layer = layer_of(location)
    return with_layer(location, renaming.layer(layer)) if layer else location


def _renamed_facts(facts: ir.DictAttr, renaming: Renaming) -> ir.DictAttr:
    """What is said of an argument or a result."""
    renamed = {entry.name: entry.attr for entry in facts}
    for name, rename in ((PARAMETER, renaming.parameter), (GRADIENT, renaming.parameter), (STATE, renaming.state)):
        if name in renamed:
            renamed[name] = ir.StringAttr.get(rename(ir.StringAttr(renamed[name]).value))
    return ir.DictAttr.get(renamed)


def _renamed_config(config: ir.DictAttr, renaming: Renaming) -> ir.DictAttr:
    """The settings of a kernel; that of a user's own algorithm says whose it is."""
    entries = {entry.name: entry.attr for entry in config}
    layer = entries.get("layer")
    if isinstance(layer, ir.StringAttr) and layer.value:
        entries["layer"] = ir.StringAttr.get(renaming.layer(layer.value))
    return ir.DictAttr.get(entries)
