"""Quantizations of one tensor become one: the rule of `scaled-merge-quantize`."""

from collections.abc import Iterable

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp, quantize
from steelyard.dialect.types import ScaledInfo, scaled_info_of
from steelyard.formats.schemes import Scheme
from steelyard.ir.stablehlo_ops import TRANSPOSE, permutation_of
from steelyard.ir.torch_ops import defining_op, erase_unused_views, flatten_root, walk_ops


def merge_quantizations(ops: Iterable[ir.Operation]) -> None:
    """Merge the quantizations among some ops that have one tensor, wherever their copies agree."""
    groups: dict[tuple[object, ...], list[QuantizeOp]] = {}
    for op in ops:
        if isinstance(op.opview, QuantizeOp):
            _join(groups.setdefault(_key(op.opview), []), op.opview)


def _key(op: QuantizeOp) -> tuple[object, ...]:
    """What must be equal for one quantize to serve in place of another."""
    info = scaled_info_of(op.result)
    state = (info.groups, *tuple(op.operands)[1:])
    attributes = tuple(op.attributes[name] for name in ("layer", "role", "operandSegmentSizes"))
    return (op.operation.block, *_tensor(op.source), info.shape, info.dtype, *state, *attributes)


def is_recorded(function: ir.Operation, value: ir.Value, like: QuantizeOp) -> bool:
    """Whether the amax of a value's quantization is recorded: what merges with it has one, too."""
    others = [op.opview for op in walk_ops(function) if isinstance(op.opview, QuantizeOp)]
    same = [each for each in others if _tensor(each.source) == _tensor(value) and each.role == like.role]
    return any(each.new_amax is not None for each in same)


def _tensor(source: ir.Value) -> tuple[object, ...]:
    """What is equal for two sources that are the same matrix: two transposes of a value are."""
    root = flatten_root(source)
    op = defining_op(root)
    if op is None or op.name != TRANSPOSE:
        return (root,)
    return (flatten_root(op.operands[0]), tuple(permutation_of(op)))


def _join(group: list[QuantizeOp], op: QuantizeOp) -> None:
    """Merge an op into the first of its group whose copies agree with its own, or start another."""
    for index, first in enumerate(group):
        merged = _merged(scaled_info_of(first.result), scaled_info_of(op.result))
        if merged is None or (first.new_amax is None) != (op.new_amax is None):
            continue
        wide = group[index] = _widen(first, merged)
        op.result.replace_all_uses_with(wide.result)
        if op.new_amax is not None and wide.new_amax is not None:
            op.new_amax.replace_all_uses_with(wide.new_amax)
        source = op.source
        op.operation.erase()
        erase_unused_views(source)
        return
    group.append(op)


def _widen(op: QuantizeOp, merged: ScaledInfo) -> QuantizeOp:
    """The op with the copies of the merged type."""
    if scaled_info_of(op.result) == merged:
        return op
    with ir.InsertionPoint(op), op.location:
        wide = quantize(
            op.source,
            merged.row,
            merged.col,
            role=op.role.value,
            layer=op.layer.value,
            scale=op.scale,
            rng=op.rng,
            ends=op.ends,
            groups=merged.groups,
            new_amax=op.new_amax is not None,
        )
    for old, new in zip(op.results, wide.results, strict=True):
        old.replace_all_uses_with(new)
    op.operation.erase()
    return wide


def _merged(first: ScaledInfo, second: ScaledInfo) -> ScaledInfo | None:
    if _differ(first.row, second.row) or _differ(first.col, second.col):
        return None
    return first.with_schemes(first.row or second.row, first.col or second.col)


def _differ(first: Scheme | None, second: Scheme | None) -> bool:
    return first is not None and second is not None and first != second
