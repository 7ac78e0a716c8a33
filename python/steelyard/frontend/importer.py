"""An FX graph of ATen ops as a function of the `torch` dialect.

Every op's location is its layer's name around its source lines, so that a diagnostic of any later stage names both. In
a checkpointed region, the region's rule comes between the two, and for an op with matrix products, their FLOPs.
Arguments that are parameters have the attribute `scaled.parameter`.
"""

import functools
from collections.abc import Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import CheckpointPolicy
from torch_mlir import ir
from torch_mlir.extras.fx_importer import ContextCache, FxImporter

from steelyard.frontend.flops import node_work
from steelyard.frontend.nodes import NodeImporter
from steelyard.frontend.strides import remove_strides
from steelyard.ir.attributes import PARAMETER, WRITTEN
from steelyard.ir.locations import KEEP, RECOMPUTE, flops_location
from steelyard.ir.stored import StoredSchemes, stored_attributes
from steelyard.ir.torch_ops import walk_ops

# Tensors in the IR are values without memory, so MLIR folds these into an operand or a constant. At run time, the
# result would then share memory with an input that is written later, or with the caller. A convolution is written again
# with other spellings of its padding, and would lose the reason that `explain()` shows.
_NEVER_FOLDED = {
    f"torch.aten.{name}"
    for name in (
        *("clone", "_to_copy", "cat", "stack", "where.self", "index_select", "sort", "any.dims"),
        *("full", "ones", "zeros", "tril_indices", "triu_indices", "convolution"),
    )
}


def import_graph(
    graph: torch.fx.Graph,
    context: ir.Context,
    *,
    name: str,
    layers: Mapping[torch.fx.Node, str],
    parameters: Sequence[str | None],
    stored: Sequence[StoredSchemes] = (),
    written: Sequence[int] = (),
) -> ir.Module:
    """Import a graph. `layers` gives the layer of each node, `parameters` the parameter of each argument.

    `stored` says of the first arguments how those that are quantized tensors hold their rows. `written` are the
    arguments whose new values are the first results.

    Raises `UnsupportedOpError` for an op that the `torch` dialect cannot hold.
    """
    importer = FxImporter(context=context)
    importer._cc = _LayerLocations(context, py_attr_tracker=importer._py_attr_tracker, layers=layers)
    importer._graph_node_importer_cls = functools.partial(NodeImporter, layers=layers)  # pyright: ignore[reportAttributeAccessIssue]
    function = importer.import_stateless_graph(graph, func_name=name)
    with context:
        _describe_arguments(function, parameters, stored, written)
        _hide_from_folding(function)
    return importer.module


def lift_constants(graph_module: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Turn the tensors that a graph holds into arguments, before tangents and after all others, and return them."""
    graph = graph_module.graph
    remove_strides(graph)
    constants: dict[str, torch.fx.Node] = {}
    given = [node for node in graph.nodes if node.op == "placeholder" and not node.name.startswith("tangents")]
    last = given[-1] if given else None
    for node in list(graph.nodes):
        if node.op != "get_attr" or not isinstance(getattr(graph_module, node.target, None), torch.Tensor):
            continue
        if node.target not in constants:
            with graph.inserting_after(last) if last else graph.inserting_before(next(iter(graph.nodes))):
                last = constants[node.target] = graph.placeholder(node.target)
            last.meta = node.meta | {"val": _fake(getattr(graph_module, node.target), graph)}
        node.replace_all_uses_with(constants[node.target])
        graph.erase_node(node)
    return [getattr(graph_module, name) for name in constants]


def _fake(constant: torch.Tensor, graph: torch.fx.Graph) -> torch.Tensor:
    """A constant as the values of a graph are: without memory."""
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    return constant if mode is None else mode.from_tensor(constant)


class _LayerLocations(ContextCache):
    """Wraps a node's location in its layer's name."""

    __slots__ = ("_layers",)

    def __init__(self, context: ir.Context, *, layers: Mapping[torch.fx.Node, str], **keywords):
        super().__init__(context, **keywords)
        self._layers = layers

    def get_node_location(self, node: torch.fx.Node) -> ir.Location | None:
        location = super().get_node_location(node)
        layer, policy = self._layers.get(node, ""), node.meta.get("recompute")
        rule = None if policy is None else _CHECKPOINT_RULES.get(policy)
        work = node_work(node)
        if not layer and rule is None and work is None:
            return location
        location = location or ir.Location.unknown(self._c)
        if work is not None:
            location = flops_location(work.flops, location)
        if rule is not None:
            location = ir.Location.name(rule, location, context=self._c)
        return ir.Location.name(layer, location, context=self._c)


_CHECKPOINT_RULES = {
    CheckpointPolicy.MUST_RECOMPUTE: RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE: RECOMPUTE,
    CheckpointPolicy.MUST_SAVE: KEEP,
}


def _hide_from_folding(function: ir.Operation) -> None:
    for op in walk_ops(function):
        if op.name not in _NEVER_FOLDED:
            continue
        attributes = {"name": ir.StringAttr.get(op.name)}
        results, operands = [result.type for result in op.results], list(op.operands)
        with ir.InsertionPoint(op):
            hidden = ir.Operation.create("torch.operator", results, operands, attributes, loc=op.location)
        for old, new in zip(op.results, hidden.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _describe_arguments(
    function: ir.Operation,
    parameters: Sequence[str | None],
    stored: Sequence[StoredSchemes],
    written: Sequence[int],
) -> None:
    attributes: list[dict[str, ir.Attribute]] = [
        {} if name is None else {PARAMETER: ir.StringAttr.get(name)} for name in parameters
    ]
    for own, schemes in zip(attributes, stored, strict=False):
        own |= stored_attributes(schemes)
    for result, argument in enumerate(written):
        attributes[argument][WRITTEN] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), result)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(own) for own in attributes])
