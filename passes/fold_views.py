"""`scaled-fold-views`."""

from torch_mlir import ir

from steelyard.ir.torch_ops import defining_op, erase_unused_views, info_of, op_name, walk_ops
from steelyard.ir.view_ops import RESHAPES, SHARES_MEMORY
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def fold_views(module: ir.Operation) -> None:
    """Reshape a tensor once on the way to whoever reads it.

    Takes any IR. Leaves one `torch.aten.reshape` in place of reshapes of reshapes, and none where the last has the
    sizes, all known, that the tensor began with. A reshape that may copy stays if others read it too: each of them
    would copy on its own. An argument of the function is never its result in place of a view.
    """
    for op in walk_ops(module):
        if op_name(op) in RESHAPES:
            _fold(op)


def _fold(op: ir.Operation) -> None:
    source, root = op.operands[0], _root(op.operands[0])
    if root.type == op.result.type and _is_static(root) and defining_op(root) is not None:
        op.result.replace_all_uses_with(root)
    elif root != source:
        with ir.InsertionPoint(op), op.location:
            made = ir.Operation.create("torch.aten.reshape", [op.result.type], [root, op.operands[1]])
        op.result.replace_all_uses_with(made.result)
    else:
        return
    op.erase()
    erase_unused_views(source)


def _root(value: ir.Value) -> ir.Value:
    """What reshapes began with that nobody else needs, or that never copy."""
    while (op := defining_op(value)) is not None and op_name(op) in RESHAPES:
        if op_name(op) not in SHARES_MEMORY and len(list(value.uses)) > 1:
            break
        value = op.operands[0]
    return value


def _is_static(value: ir.Value) -> bool:
    info = info_of(value)
    return info is not None and None not in info.shape
