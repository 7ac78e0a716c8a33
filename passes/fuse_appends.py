"""`scaled-fuse-appends`."""

from collections.abc import Mapping
from dataclasses import replace

from torch_mlir import ir

from steelyard.errors import ConstraintError
from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import (
    AttentionCall,
    Declarations,
    KernelCall,
    Slot,
    callee_of,
    erase_uncalled,
)
from steelyard.ir.torch_ops import constant_int, defining_op, op_name, writes_in_place
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.declared import declared_calls

_CAT, _LIST = "torch.aten.cat", "torch.prim.ListConstruct"
_TOKEN_DIMS = (2, -2)
"""Along which a cache grows."""
_CACHE_AND_NEW = 2


@register_pass
def fuse_appends(module: ir.Operation) -> None:
    """Let attention read a cache and what is appended to it where each of them is.

    Takes calls of `attention`, and torch's `cat` of its keys and of its values, each of a cache and of new tokens.
    Leaves calls of `attention` that read both parts, so that a step copies no cache. What anything else reads
    concatenated, such as the cache that a function returns, stays, and so does the call that reads it. Functions that
    write in place stay as they are.
    """
    calls = declared_calls(module)
    declarations = Declarations(module)
    for function in functions_of(module):
        ops = [op.operation for op in function.regions[0].blocks[0].operations]
        if not any(writes_in_place(op) for op in ops):
            for op in ops:
                _fuse(op, calls, declarations)
    erase_uncalled(module)


def _fuse(op: ir.Operation, calls: Mapping[str, KernelCall], declarations: Declarations) -> None:
    call = calls.get(callee_of(op) or "")
    if not isinstance(call, AttentionCall) or call.cached is not None or call.operand("new_key") is not None:
        return
    query, key, value, *mask = op.operands
    keys, values = _parts(key, op), _parts(value, op)
    if {len(keys), len(values)} != {_CACHE_AND_NEW}:
        return
    named = [("query", query), ("key", keys[0]), ("value", values[0]), ("new_key", keys[1]), ("new_value", values[1])]
    named += [("mask", one) for one in mask]
    made_call = replace(call, operands=tuple(Slot(name, one.type) for name, one in named))
    try:
        made_call.check()
    except ConstraintError:
        return
    with ir.InsertionPoint(op), op.location:
        made = declarations.call(made_call, [one for _, one in named])
    for old, new in zip(op.results, made, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
    for whole in {key, value}:
        _erase_append(whole)


def _parts(value: ir.Value, reader: ir.Operation) -> list[ir.Value]:
    """What keys or values are put together from for one reader alone."""
    op = defining_op(value)
    if op is None or op_name(op) != _CAT or constant_int(op.operands[1]) not in _TOKEN_DIMS:
        return []
    listed = defining_op(op.operands[0])
    if listed is None or listed.name != _LIST or any(use.owner.operation != reader for use in value.uses):
        return []
    return list(listed.operands)


def _erase_append(whole: ir.Value) -> None:
    op = defining_op(whole)
    assert op is not None
    listed = defining_op(op.operands[0])
    assert listed is not None
    op.erase()
    if not list(listed.result.uses):
        listed.erase()
