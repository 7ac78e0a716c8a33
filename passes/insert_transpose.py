"""`scaled-insert-transpose`."""

from torch_mlir import ir

from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.quantize import QuantizeOp, quantize, transpose
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def insert_transpose(module: ir.Operation) -> None:
    """Decide where each columnwise copy comes from: the codes of the rowwise one, or the source.

    Takes `scaled.quantize` into two copies. Where both have the same scheme and its codes can be transposed (one scale
    per tensor, or 128x128, 32x32 or 16x16 tiles), leaves a quantize into the rowwise copy and a `scaled.transpose` of
    it for the GEMMs that read columns: one copy is kept, and the other can be made again. Copies with two schemes, or
    with blocks along one dim, are both quantized from the source.
    """
    for op in walk_ops(module):
        if isinstance(op.opview, QuantizeOp) and _can_turn(op.opview):
            _split(op.opview)


def _can_turn(op: QuantizeOp) -> bool:
    info = op.result.type.info
    if info.row is None or info.row != info.col or not info.row.is_transposable:
        return False
    # Bits of stochastic rounding differ from copy to copy.
    return info.row.rounding == "nearest" and all(isinstance(use.owner.opview, GemmOp) for use in op.result.uses)


def _split(op: QuantizeOp) -> None:
    info = op.result.type.info
    with ir.InsertionPoint(op), op.location:
        row = quantize(
            op.source,
            info.row,
            None,
            role=op.role.value,
            layer=op.layer.value,
            scale=op.scale,
            amax=op.amax,
            rng=op.rng,
            new_amax=op.new_amax is not None,
        )
        column = transpose(row.result)
    for use in list(op.result.uses):
        user, number = use.owner, use.operand_number
        usage = OPERAND_USAGES[user.opview.kind.value][number]
        user.operation.operands[number] = row.result if usage == "rowwise" else column.result
    if op.new_amax is not None:
        op.new_amax.replace_all_uses_with(row.new_amax)
    op.operation.erase()
