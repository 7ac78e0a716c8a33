"""What an op's location says: its layer, the rule of the checkpointed region it is in, its work, and its source lines.

    loc("layers.0.mlp"("recompute"("4096 flops"("model.py":12:8))))

The work of an op with matrix products is counted with the sizes of the call that it was captured from.

Passes give the ops they make the location of those they replace, so that it lasts from capture to the last stage.
"""

from collections.abc import Iterator
from pathlib import Path

from torch_mlir import ir

_OWN = str(Path(__file__).parents[1])
"""The folder of this package."""
_FLOPS = " flops"
RECOMPUTE = "recompute"
"""The backward computes the op again."""
KEEP = "keep"
"""The backward reads what the forward computed."""


def layer_of(location: ir.Location) -> str:
    """The layer that a location names; empty where it names none."""
    location = _downcast(location)
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def with_layer(location: ir.Location, layer: str) -> ir.Location:
    """The same location in another layer; one that names no layer stays as it is."""
    named = _downcast(location)
    if not isinstance(named, ir.NameLoc):
        return location
    return ir.Location.name(layer, named.child_loc, context=location.context)


def checkpoint_rule(location: ir.Location) -> str | None:
    """The rule of the checkpointed region that a location is in, if it is in one."""
    return next((name for name in _names_below_layer(location) if name in (RECOMPUTE, KEEP)), None)


def flops_location(flops: int, location: ir.Location) -> ir.Location:
    """A location that says how many FLOPs its op does."""
    return ir.Location.name(f"{flops}{_FLOPS}", location, context=location.context)


def flops_of(location: ir.Location) -> int | None:
    """The FLOPs of the op that a location is of; None where it has no matrix product, or it is not known."""
    found = next((name for name in _names_below_layer(location) if name.endswith(_FLOPS)), None)
    return None if found is None else int(found.removesuffix(_FLOPS))


def source_of(location: ir.Location) -> str:
    """The innermost source line of a location, as `file:line`; empty where it has none but this package's own."""
    location = _downcast(location)
    while isinstance(location, ir.NameLoc):
        location = _downcast(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        location = _downcast(location.callee)
    if not isinstance(location, ir.FileLineColLoc) or location.filename.startswith(_OWN):
        return ""
    return f"{location.filename}:{location.start_line}"


def _names_below_layer(location: ir.Location) -> Iterator[str]:
    location = _downcast(location)
    while isinstance(location, ir.NameLoc):
        location = _downcast(location.child_loc)
        if isinstance(location, ir.NameLoc):
            yield location.name_str


def _downcast(location: ir.Location) -> ir.Location:
    return ir.Location.from_attr(location.attr, location.context)
