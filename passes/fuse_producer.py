"""`scaled-fuse-producer`."""

from torch_mlir import ir

from steelyard.dialect.produce import produce_quantize
from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import scaled_info_of
from steelyard.ir.torch_ops import defining_op, info_of, is_view, reshaped_as, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.producers import is_read_once, match_producer


@register_pass
def fuse_producer(module: ir.Operation) -> None:
    """Quantize norms and activations as they are computed.

    Takes `scaled.quantize` of a layer norm with weight and bias, an RMS norm, a silu times another tensor, or a relu,
    gelu or silu, directly or through views that flatten the dims before the last. Leaves a `scaled.produce_quantize` of
    their inputs. Nothing is fused where something else reads the value, where a view flattens the dim of a norm, too,
    or where the quantize has a custom scheme, takes random bits, keeps its amax or is of groups.
    """
    for op in walk_ops(module):
        if isinstance(op.opview, QuantizeOp):
            _fuse(op.opview)


def _fuse(op: QuantizeOp) -> None:
    info = scaled_info_of(op.result)
    if op.rng is not None or op.new_amax is not None or info.groups:
        return
    if any(scheme.custom for scheme in info.schemes):
        return
    value, views = _through_views(op.source)
    produced = match_producer(value) if value is not None else None
    if value is None or produced is None or (views and (len(info.shape) != 2 or info.shape[-1] is None)):
        return
    if produced.vectors and not _has_rows_of(value, info.shape[-1]):
        return
    with ir.InsertionPoint(op), op.location:
        other = None if produced.other is None else reshaped_as(produced.other, op.source.type)
        fused = produce_quantize(
            produced.producer,
            reshaped_as(produced.source, op.source.type),
            info.row,
            info.col,
            role=op.role.value,
            layer=op.layer.value,
            other=other,
            epsilon=produced.epsilon,
            scale=op.scale,
            weight=produced.vectors.get("weight"),
            bias=produced.vectors.get("bias"),
        )
    op.result.replace_all_uses_with(fused.result)
    op.operation.erase()
    for dead in [*views, *produced.ops]:
        dead.erase()


def _has_rows_of(value: ir.Value, length: int | None) -> bool:
    """Whether the rows of a value are this long: the statistics of a norm are of rows, and so are its vectors."""
    info = info_of(value)
    return info is not None and info.shape[-1:] == (length,)


def _through_views(value: ir.Value) -> tuple[ir.Value | None, list[ir.Operation]]:
    """The value behind views that nothing else reads, and those views, last first."""
    views: list[ir.Operation] = []
    while is_read_once(value) and (op := defining_op(value)) is not None and is_view(op):
        views.append(op)
        value = op.operands[0]
    return (value if is_read_once(value) else None), views
