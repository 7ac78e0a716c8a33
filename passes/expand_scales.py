"""`scaled-expand-scales`."""

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp, quantize
from steelyard.dialect.scale import amax
from steelyard.dialect.types import scaled_info_of
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def expand_scales(module: ir.Operation) -> None:
    """Compute the amaxes that are kept by ops of their own.

    Takes `scaled.quantize` with the result `new_amax`, which is kept as state or reduced over ranks. Leaves a
    `scaled.amax` of its source, and the quantize without that result. A `new_amax` that nothing reads is removed. A
    tensor in groups keeps its own: they are a part of its copies.
    """
    for op in walk_ops(module):
        view = op.opview
        if isinstance(view, QuantizeOp) and view.new_amax is not None and not scaled_info_of(view.result).groups:
            _expand(view)


def _expand(op: QuantizeOp) -> None:
    per_row = any(scheme.second_level == "row" for scheme in scaled_info_of(op.result).schemes)
    with ir.InsertionPoint(op), op.location:
        if op.new_amax is not None and list(op.new_amax.uses):
            op.new_amax.replace_all_uses_with(amax(op.source, per_row=per_row).result)
        info = scaled_info_of(op.result)
        plain = quantize(
            op.source,
            info.row,
            info.col,
            role=op.role.value,
            layer=op.layer.value,
            scale=op.scale,
            rng=op.rng,
            ends=op.ends,
            groups=info.groups,
        )
    op.result.replace_all_uses_with(plain.result)
    op.operation.erase()
