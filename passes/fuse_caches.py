"""`scaled-fuse-caches`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from torch_mlir import ir

from steelyard.dialect.types import Shape
from steelyard.formats.schemes import CACHED, CACHED_STATIC, Scheme
from steelyard.ir.kernel_calls import (
    AttentionCall,
    Declarations,
    DequantizeCall,
    KernelCall,
    Slot,
    callee_of,
    erase_uncalled,
)
from steelyard.ir.torch_ops import constant_int, defining_op, info_of, op_name, walk_ops
from steelyard.ir.view_ops import RESHAPES, VIEW_LIKE
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.declared import declared_calls

_FEW_QUERIES = 16
"""More tokens read each key so often that it is better decoded once."""
_DEAD = VIEW_LIKE | {"torch.aten.size.int", "torch.prim.ListConstruct"}


@register_pass
def fuse_caches(module: ir.Operation) -> None:
    """Let attention read keys and values where they are kept.

    Takes calls of `attention`, and of `dequantize` for what a KV cache holds. Leaves calls of `attention` that read a
    head of keys and values as it is, where a copy repeated it for several heads of queries. Queries of at most 16
    tokens read the codes and scales of a quantized cache, and what nobody else reads decoded is not decoded.
    """
    calls = declared_calls(module)
    declarations = Declarations(module)
    fused = [op for op in walk_ops(module) if _fuse(op, calls, declarations)]
    if not fused:
        return
    for op in fused:
        op.erase()
    for op in reversed(list(walk_ops(module))):
        is_decoded = isinstance(calls.get(callee_of(op) or ""), DequantizeCall)
        if (is_decoded or op_name(op) in _DEAD) and not any(list(result.uses) for result in op.results):
            op.erase()
    erase_uncalled(module)


def _fuse(op: ir.Operation, calls: Mapping[str, KernelCall], declarations: Declarations) -> bool:
    """Replace what a call makes; whether the call is of no more use."""
    call = calls.get(callee_of(op) or "")
    if not isinstance(call, AttentionCall) or call.cached is not None:
        return False
    query, key, value, *mask = op.operands
    heads = [_unrepeated(key), _unrepeated(value)]
    if info_of(heads[0]) != info_of(heads[1]):
        heads = [key, value]
    few = heads if _has_few(query) else []
    kept = [one for head in few if (one := _kept(head, calls)) is not None]
    named = [("query", query)]
    scheme = None
    if len(kept) == 2 and kept[0].scheme == kept[1].scheme:
        scheme = kept[0].scheme
        for name, one in zip(("key", "value"), kept, strict=True):
            named += [(f"{name}.codes", one.codes), (f"{name}.scales", one.scales)]
    elif heads == [key, value]:
        return False
    else:
        named += zip(("key", "value"), heads, strict=True)
    named += [("mask", value) for value in mask]
    made_call = replace(call, operands=tuple(Slot(name, value.type) for name, value in named), cached=scheme)
    with ir.InsertionPoint(op), op.location:
        made = declarations.call(made_call, [value for _, value in named])
    for old, new in zip(op.results, made, strict=True):
        old.replace_all_uses_with(new)
    return True


def _has_few(query: ir.Value) -> bool:
    info = info_of(query)
    return info is not None and info.shape[2] is not None and info.shape[2] <= _FEW_QUERIES


def _unrepeated(value: ir.Value) -> ir.Value:
    """The heads that a value has several times each, one after the other: what `repeat_kv` of transformers takes."""
    chain: list[ir.Operation] = []
    for names in (RESHAPES, {"torch.aten.clone"}, {"torch.aten.expand"}, {"torch.aten.unsqueeze"}):
        op = defining_op(value if not chain else chain[-1].operands[0])
        if op is None or op_name(op) not in names:
            return value
        chain.append(op)
    _, _, expand, unsqueeze = chain
    source, repeated, found = (info_of(one) for one in (unsqueeze.operands[0], expand.result, value))
    if source is None or repeated is None or found is None or constant_int(unsqueeze.operands[1]) != 2:
        return value
    batch, heads, *rest = source.shape
    times = repeated.shape[2] if len(repeated.shape) == 5 else None
    if heads is None or times is None or repeated.shape != (batch, heads, times, *rest):
        return value
    return unsqueeze.operands[0] if found.shape == (batch, heads * times, *rest) else value


class _Kept(NamedTuple):
    """Keys or values as a cache keeps them."""

    codes: ir.Value
    scales: ir.Value
    scheme: Scheme


def _kept(value: ir.Value, calls: Mapping[str, KernelCall]) -> _Kept | None:
    """What a value is decoded from; None if it is not, or if its heads and tokens are not dims of their own there."""
    view = defining_op(value)
    decode = None if view is None or op_name(view) not in RESHAPES else defining_op(view.operands[0])
    call = None if decode is None else calls.get(callee_of(decode) or "")
    if decode is None or not isinstance(call, DequantizeCall) or call.scheme not in (CACHED, CACHED_STATIC):
        return None
    info = info_of(value)
    assert info is not None
    codes = _viewed(decode.operands[call.copy.codes], info.shape)
    scales = decode.operands[call.copy.scales]
    if call.scheme == CACHED:
        scales = _viewed(scales, (*info.shape[:-1], 1))
    return None if codes is None or scales is None else _Kept(codes, scales, call.scheme)


def _viewed(matrix: ir.Value, shape: Shape) -> ir.Value | None:
    """The tensor of a shape that a matrix is a reshape of."""
    op = defining_op(matrix)
    if op is None or op_name(op) not in RESHAPES:
        return None
    info = info_of(op.operands[0])
    return op.operands[0] if info is not None and info.shape == shape else None
