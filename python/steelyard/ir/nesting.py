"""Several modules as one: each graph of a net is a module of its own, which calls of blocks name."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from torch_mlir import ir

from steelyard.dialect.blocks import call_block
from steelyard.ir.attributes import PLAN


def nest_modules(
    modules: Mapping[str, ir.Module], context: ir.Context, calls: Sequence[tuple[str, str]] = ()
) -> ir.Module:
    """A module, if it is the only one, or one that holds several by name: `graph_names` gives their names.

    `calls` says which of them are called for which layers; the calls stand below the modules.
    """
    if len(modules) == 1 and not calls:
        return next(iter(modules.values()))
    with context, ir.Location.unknown():
        outer = ir.Module.create()
        for name, inner in modules.items():
            nested = inner.operation.clone()
            nested.attributes["sym_name"] = ir.StringAttr.get(name)
            outer.body.append(nested)
        for name, layer in calls:
            call_block(name, layer, ip=ir.InsertionPoint(outer.body))
    return outer


def graph_names() -> Iterator[str]:
    """The names of nested modules."""
    return (f"graph{index}" for index in count())


def graphs_in(module: ir.Operation) -> list[ir.Operation]:
    """The modules that hold the functions of a module: those nested in it, or itself if it has functions."""
    ops = [op.operation for op in module.regions[0].blocks[0].operations]
    nested = [op for op in ops if op.name == "builtin.module" and PLAN not in op.attributes]
    has_functions = any(op.name == "func.func" for op in ops)
    return nested if nested and not has_functions else [module]
