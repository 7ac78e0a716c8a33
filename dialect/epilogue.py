"""What follows a product that no GEMM of the target does itself: `epilogue`."""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require, string_attribute
from steelyard.dialect.types import float_info, format_shape, require_tensor, shapes_agree, sizes_agree
from steelyard.formats.activations import EPILOGUES


class EpilogueOp(ScaledOp, name="epilogue", traits=[ext.Pure]):
    """An epilogue as an op of its own: epilogue(source + bias) + residual.

    Computed in f32 and rounded once. `preactivation` is source + bias, for a backward that reads it.

    Constraints:
    - epilogue_c1: source is a tensor of f32
    - epilogue_c2: result is a tensor of f32, bf16 or f16 with the source's shape
    - epilogue_c3: epilogue is none, relu, gelu, gelu_tanh or silu
    - epilogue_c4: bias has the shape of the last dim
    - epilogue_c5: residual has the result's type
    - epilogue_c6: preactivation needs an epilogue other than none and has the result's type
    """

    assembly_format = "$epilogue $source [bias($bias)] [residual($residual)]"

    source: ext.Operand[Any]
    result: ext.Result[Any]
    epilogue: ir.StringAttr
    bias: ext.Operand[Any] | None = None
    residual: ext.Operand[Any] | None = None
    preactivation: ext.Result[Any] | None = None

    def check(self) -> None:
        source = float_info(self.source, "epilogue_c1", "source")
        require(source.dtype == "f32", "epilogue_c1", f"source must be a tensor of f32, got {source}")
        result = float_info(self.result, "epilogue_c2", "result")
        agree = shapes_agree(source.shape, result.shape) and source.namespace == result.namespace
        wanted = format_shape(source.shape)
        require(agree, "epilogue_c2", f"result must be like the source, of shape {wanted}, got {result}")
        epilogue = string_attribute(self, "epilogue", EPILOGUES, "epilogue_c3")
        if self.bias is not None:
            bias = float_info(self.bias, "epilogue_c4", "bias")
            fits = len(bias.shape) == 1 and sizes_agree(bias.shape[0], result.shape[-1])
            require(fits, "epilogue_c4", f"bias must have shape {format_shape(result.shape[-1:])}, got {bias}")
        if self.residual is not None:
            require_tensor(self.residual, result, "epilogue_c5", "residual")
        if self.preactivation is not None:
            require(epilogue != "none", "epilogue_c6", "a preactivation needs an epilogue other than none")
            require_tensor(self.preactivation, result, "epilogue_c6", "preactivation")


def epilogue(
    source: ir.Value,
    result: ir.Type,
    *,
    epilogue: str = "none",
    bias: ir.Value | None = None,
    residual: ir.Value | None = None,
    preactivation: bool = False,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> EpilogueOp:
    """Build a `scaled.epilogue`."""
    results = [result, result if preactivation else None]
    attributes: dict[str, ir.Attribute] = {"epilogue": ir.StringAttr.get(epilogue)}
    return build(EpilogueOp, [source, bias, residual], results, attributes, loc, ip)
