"""`scaled-merge-quantize`."""

from torch_mlir import ir

from steelyard.ir.torch_ops import walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.merging import merge_quantizations


@register_pass
def merge_quantize(module: ir.Operation) -> None:
    """Quantize each tensor once, however many GEMMs read it.

    Takes `scaled.quantize`. Leaves one in place of all that quantize the same tensor in the same shape, with every copy
    that any of them made, unless two of them have different schemes for the same usage. Views that only flatten the
    dims before the last count as the same tensor.
    """
    merge_quantizations(walk_ops(module))
