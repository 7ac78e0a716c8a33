"""`scaled-merge-duplicates`."""

from collections.abc import Hashable

from torch_mlir import ir

from steelyard.ir.functions import functions_of
from steelyard.ir.torch_ops import op_name, writes_in_place
from steelyard.ir.view_ops import SHARES_MEMORY
from steelyard.passes.pipeline.registry import register_pass

_MERGED = SHARES_MEMORY | {"torch.prim.ListConstruct", "torch.aten.size.int"}


@register_pass
def merge_duplicates(module: ir.Operation) -> None:
    """Keep one of the torch ops that show the same part of the same tensor.

    Takes any IR. Leaves one of several views, sizes and lists of them with equal operands, attributes and result types,
    such as the selects of a rotary table in each layer: to MLIR torch's ops are not pure, so `cse` keeps them all. Ops
    that compute stay, because their results would have to live from the first to the last use, and so do views that
    the function returns, which are tensors of their own to who called it. Nothing is merged across an op that writes in
    place.
    """
    for function in functions_of(module):
        _merge(function)


def _merge(function: ir.Operation) -> None:
    known: dict[Hashable, ir.Operation] = {}
    for op in [op.operation for op in function.regions[0].blocks[0].operations]:
        if writes_in_place(op):
            known.clear()
        if op_name(op) in _MERGED and not any(_is_returned(result) for result in op.results):
            _merge_op(op, known)


def _merge_op(op: ir.Operation, known: dict[Hashable, ir.Operation]) -> None:
    first = known.setdefault(_key(op), op)
    if first == op:
        return
    for result, kept in zip(op.results, first.results, strict=True):
        result.replace_all_uses_with(kept)
    op.erase()


def _key(op: ir.Operation) -> Hashable:
    attributes = tuple(sorted((name, str(op.attributes[name])) for name in op.attributes))
    types = tuple(str(result.type) for result in op.results)
    return op.name, tuple(op.operands), attributes, types


def _is_returned(value: ir.Value) -> bool:
    return any(use.owner.operation.name == "func.return" for use in value.uses)
