"""`produce_quantize`: a norm or an activation that is quantized as it is computed."""

from typing import Any, Literal

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, attribute_of, build, require, string_attribute
from steelyard.dialect.types import (
    ScaledInfo,
    TensorInfo,
    float_info,
    format_shape,
    require_tensor,
    scaled_info,
    shapes_agree,
)
from steelyard.formats.activations import ACTIVATIONS, Activation
from steelyard.formats.gemms import ROLES
from steelyard.formats.schemes import Scheme

Producer = Literal[Activation, "silu_and_multiply", "layer_norm", "rms_norm"]
PRODUCERS: dict[Producer, tuple[str, ...]] = {
    **dict.fromkeys(ACTIVATIONS, ()),
    "silu_and_multiply": ("other",),
    "layer_norm": ("weight", "bias"),
    "rms_norm": ("weight",),
}
"""Producer -> the operands it reads beside the source."""
NORMS: tuple[Producer, ...] = ("layer_norm", "rms_norm")


class ProduceQuantizeOp(ScaledOp, name="produce_quantize", traits=[ext.Pure]):
    """Compute a norm over the last dim or an activation in f32, round to the dtype and quantize, in one pass.

    Constraints:
    - produce_quantize_c1: producer is relu, gelu, gelu_tanh, silu, silu_and_multiply, layer_norm or rms_norm
    - produce_quantize_c2: it has exactly the operands that its producer reads: other for silu_and_multiply, weight for
      norms, bias for layer_norm
    - produce_quantize_c3: source is a ranked tensor of f32, bf16 or f16, other has its type, weight and bias the length
      of its last dim
    - produce_quantize_c4: result is a !scaled.tensor of the source's shape and dtype
    - produce_quantize_c5: epsilon is positive for norms and 0 for everything else
    - produce_quantize_c6: role is input, weight or grad_output
    - produce_quantize_c7: rounding is to nearest, and only a delayed or static scheme takes a scale, an f32 scalar
    """

    assembly_format = (
        "$role $producer $source [other($other)] [weight($weight)] [bias($bias)] [epsilon($epsilon = 0.0)] "
        '[scale($scale)] [at $layer = ""]'
    )

    source: ext.Operand[Any]
    result: ext.Result[Any]
    producer: ir.StringAttr
    epsilon: ir.FloatAttr
    role: ir.StringAttr
    layer: ir.StringAttr
    other: ext.Operand[Any] | None = None
    weight: ext.Operand[Any] | None = None
    bias: ext.Operand[Any] | None = None
    scale: ext.Operand[Any] | None = None

    def check(self) -> None:
        producer = string_attribute(self, "producer", tuple(PRODUCERS), "produce_quantize_c1")
        source = self._check_operands(producer)
        result = scaled_info(self.result, "produce_quantize_c4", "result")
        require(
            shapes_agree(source.shape, result.shape) and source.dtype == result.dtype,
            "produce_quantize_c4",
            f"result must stand for {format_shape(source.shape)} of {source.dtype}, "
            f"got {format_shape(result.shape)} of {result.dtype}",
        )
        epsilon = attribute_of(self, "epsilon", ir.FloatAttr).value
        is_norm = producer in NORMS
        message = f"epsilon of {producer} must be {'positive' if is_norm else '0'}, got {epsilon}"
        require(epsilon > 0 if is_norm else epsilon == 0, "produce_quantize_c5", message)
        string_attribute(self, "role", ROLES, "produce_quantize_c6")
        self._check_state(source, result.schemes)

    def _check_operands(self, producer: Producer) -> TensorInfo:
        wanted = PRODUCERS[producer]
        found = tuple(name for name in ("other", "weight", "bias") if getattr(self, name) is not None)
        message = f"{producer} reads ({', '.join(wanted)}) beside the source, got ({', '.join(found)})"
        require(found == wanted, "produce_quantize_c2", message)
        source = float_info(self.source, "produce_quantize_c3", "source")
        for name in wanted:
            value = getattr(self, name)
            info = float_info(value, "produce_quantize_c3", name)
            expected = source if name == "other" else source.with_(source.shape[-1:], info.dtype)
            require_tensor(value, expected, "produce_quantize_c3", name)
        return source

    def _check_state(self, source: TensorInfo, schemes: tuple[Scheme, ...]) -> None:
        nearest = all(scheme.rounding == "nearest" for scheme in schemes)
        require(nearest, "produce_quantize_c7", "rounding must be to nearest, got stochastic")
        given = any(scheme.source != "current" for scheme in schemes)
        found = "none" if self.scale is None else "one"
        message = f"scale must be there for a delayed or static scheme and only then, got {found}"
        require(given == (self.scale is not None), "produce_quantize_c7", message)
        if self.scale is not None:
            require_tensor(self.scale, source.with_((), "f32"), "produce_quantize_c7", "scale")


def produce_quantize(
    producer: str,
    source: ir.Value,
    row: Scheme | None,
    col: Scheme | None,
    *,
    role: str,
    layer: str = "",
    other: ir.Value | None = None,
    weight: ir.Value | None = None,
    bias: ir.Value | None = None,
    epsilon: float = 0.0,
    scale: ir.Value | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> ProduceQuantizeOp:
    """Build a `scaled.produce_quantize`."""
    info = float_info(source, "produce_quantize_c3", "source")
    result = ScaledInfo(info.shape, info.dtype, row, col)
    attributes = {
        "producer": ir.StringAttr.get(producer),
        "epsilon": ir.FloatAttr.get_f64(epsilon),
        "role": ir.StringAttr.get(role),
        "layer": ir.StringAttr.get(layer),
    }
    return build(ProduceQuantizeOp, [source, other, weight, bias, scale], [result.type()], attributes, loc, ip)
