"""Several modules as one."""

from collections.abc import Sequence

from torch_mlir import ir


def nest_modules(modules: Sequence[bytes], context: ir.Context) -> ir.Module:
    """The module of a bytecode, or one that holds the modules of several: @graph0, @graph1 and so on."""
    if len(modules) == 1:
        return ir.Module.parse(modules[0], context)
    with context, ir.Location.unknown():
        outer = ir.Module.create()
        for index, data in enumerate(modules):
            inner = ir.Module.parse(data, context)
            inner.operation.attributes["sym_name"] = ir.StringAttr.get(f"graph{index}")
            outer.body.append(inner.operation.clone())
    return outer
