"""What an op's location says: its layer, the rule of the checkpointed region it is in, and its source lines.

    loc("layers.0.mlp"("recompute"("model.py":12:8)))

Passes give the ops they make the location of those they replace, so that it lasts from capture to the last stage.
"""

from torch_mlir import ir

RECOMPUTE = "recompute"
"""The backward computes the op again."""
KEEP = "keep"
"""The backward reads what the forward computed."""


def layer_of(location: ir.Location) -> str:
    """The layer that a location names; empty where it names none."""
    location = _downcast(location)
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def checkpoint_rule(location: ir.Location) -> str | None:
    """The rule of the checkpointed region that a location is in, if it is in one."""
    location = _downcast(location)
    if not isinstance(location, ir.NameLoc):
        return None
    inner = _downcast(location.child_loc)
    rule = inner.name_str if isinstance(inner, ir.NameLoc) else None
    return rule if rule in (RECOMPUTE, KEEP) else None


def _downcast(location: ir.Location) -> ir.Location:
    return ir.Location.from_attr(location.attr, location.context)
