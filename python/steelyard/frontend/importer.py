"""An FX graph of ATen ops as a function of the `torch` dialect.

Every op's location is its layer's name around the source lines it came from, so that a diagnostic of any later stage
names both; in a checkpointed region the region's rule lies between. Arguments that are parameters say so in the
attribute `scaled.parameter`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.utils.checkpoint import CheckpointPolicy
from torch_mlir import ir
from torch_mlir.extras.fx_importer import ContextCache, FxImporter

from steelyard.passes.functions import PARAMETER
from steelyard.passes.locations import KEEP, RECOMPUTE
from steelyard.passes.torch_ops import walk_ops


def import_graph(
    graph: torch.fx.Graph,
    context: ir.Context,
    *,
    name: str,
    layers: Mapping[torch.fx.Node, str],
    parameters: Sequence[str | None],
) -> ir.Module:
    """Import a graph. `layers` names the layer of each node, `parameters` the parameter of each argument."""
    importer = FxImporter(context=context)
    importer._cc = _LayerLocations(context, py_attr_tracker=importer._py_attr_tracker, layers=layers)
    function = importer.import_stateless_graph(graph, func_name=name)
    with context:
        _name_parameters(function, parameters)
        _keep_copies(function)
    return importer.module


class _LayerLocations(ContextCache):
    """Wraps a node's location in its layer's name."""

    __slots__ = ("_layers",)

    def __init__(self, context: ir.Context, *, layers: Mapping[torch.fx.Node, str], **keywords):
        super().__init__(context, **keywords)
        self._layers = layers

    def get_node_location(self, node: torch.fx.Node) -> ir.Location | None:
        location = super().get_node_location(node)
        layer, rule = self._layers.get(node, ""), _CHECKPOINT_RULES.get(node.meta.get("recompute"))
        if not layer and rule is None:
            return location
        location = location or ir.Location.unknown(self._c)
        if rule is not None:
            location = ir.Location.name(rule, location, context=self._c)
        return ir.Location.name(layer, location, context=self._c)


_CHECKPOINT_RULES = {
    CheckpointPolicy.MUST_RECOMPUTE: RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE: RECOMPUTE,
    CheckpointPolicy.MUST_SAVE: KEEP,
}


def _keep_copies(function: ir.Operation) -> None:
    """Spell copies so that MLIR does not fold them: a caller may write to what it thinks is its own.

    To MLIR tensors are values, and a copy of a value is that value.
    """
    for op in walk_ops(function):
        if op.name not in ("torch.aten.clone", "torch.aten._to_copy"):
            continue
        copy = ir.Operation.create(
            "torch.operator",
            results=[op.result.type],
            operands=list(op.operands),
            attributes={"name": ir.StringAttr.get(op.name)},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        op.result.replace_all_uses_with(copy.result)
        op.erase()


def _name_parameters(function: ir.Operation, parameters: Sequence[str | None]) -> None:
    attributes = [ir.DictAttr.get({} if name is None else {PARAMETER: ir.StringAttr.get(name)}) for name in parameters]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
