"""The layer that each node of a captured graph belongs to."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def layer_names(
    graph: torch.fx.Graph, names: Mapping[int, str], parameters: Sequence[str | None], caller: str
) -> dict[torch.fx.Node, str]:
    """The innermost module that each node runs in.

    torch does not name the module whose forward it captures. A node there belongs to the module of a parameter that it
    reads, or that is read by the node whose gradient it computes.
    """
    layers: dict[torch.fx.Node, str] = {}
    owners: dict[torch.fx.Node, str] = {}
    by_sequence: dict[int | None, str] = {}
    named = iter(parameters)
    for node in graph.nodes:
        if node.op == "placeholder":
            name = next(named)
            if name is not None:
                owners[node] = name.rpartition(".")[0]
            continue
        read = [owners[source] for source in node.all_input_nodes if source in owners]
        layer, sequence = _layer_name(node, names), node.meta.get("seq_nr")
        if layer is None and read and len(node.all_input_nodes) > 1:
            by_sequence.setdefault(sequence, read[0])
        layers[node] = layer if layer is not None else next(iter(read), by_sequence.get(sequence, caller))
        # A view or a cast of a parameter counts as the parameter.
        if read and len(node.all_input_nodes) == 1:
            owners[node] = read[0]
    return layers


def _layer_name(node: torch.fx.Node, names: Mapping[int, str]) -> str | None:
    return innermost_module(node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack"), names)


def innermost_module(stack: Mapping[str, tuple[str, Any]] | None, names: Mapping[int, str]) -> str | None:
    """The name of the last module of torch's record of the modules that it is in; None if that is empty."""
    if not stack:
        return None
    key, (path, _) = list(stack.items())[-1]
    identity = str(key).partition("@")[0]
    if identity.isdigit() and int(identity) in names:
        return names[int(identity)]
    # Without the root, the path of the traced frame: L['self'].__dict__['_modules']['model'].layers.0.mlp
    path = re.sub(r"^L\[[^\]]*\]\.?", "", path).replace("__dict__['_modules']", "")
    return re.sub(r"\['([^']*)'\]", r".\1", path).strip(".")
