"""`scaled-fold-views`."""

from torch_mlir import ir

from steelyard.ir.torch_ops import defining_op, erase_unused_views, info_of, op_name, walk_ops
from steelyard.ir.view_ops import RESHAPES, SHARES_MEMORY
from steelyard.passes.pipeline.registry import register_pass

_T = "torch.aten.t"


@register_pass
def fold_views(module: ir.Operation) -> None:
    """Reshape a tensor once on the way to whoever reads it, and transpose it once or not at all.

    Takes any IR. Leaves one `torch.aten.reshape` in place of reshapes of reshapes, and none where the last has the
    sizes, all known, that the tensor began with. A reshape that may copy stays if others read it too: each of them
    would copy on its own. Leaves no `torch.aten.t` of a `torch.aten.t`, as autograd makes of a gradient of a weight. An
    argument of the function is never its result in place of a view.
    """
    for op in walk_ops(module):
        if op_name(op) in RESHAPES:
            _fold(op)
        elif op_name(op) == _T:
            _fold_transposes(op)


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


def _fold_transposes(op: ir.Operation) -> None:
    first = defining_op(op.operands[0])
    if first is None or op_name(first) != _T or first.operands[0].type != op.result.type:
        return
    if defining_op(first.operands[0]) is not None:
        op.result.replace_all_uses_with(first.operands[0])
        op.erase()
        erase_unused_views(first.result)


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
