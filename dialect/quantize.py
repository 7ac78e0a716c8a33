"""Into and out of low precision: `quantize`, `stored`, `dequantize`, `transpose`."""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require, string_attribute
from steelyard.dialect.types import (
    ScaledInfo,
    Shape,
    TensorInfo,
    float_info,
    format_shape,
    require_tensor,
    scaled_info,
    shapes_agree,
)
from steelyard.formats.gemms import ROLES, USAGES
from steelyard.formats.schemes import Scheme


class QuantizeOp(ScaledOp, name="quantize", traits=[ext.Pure]):
    """Quantize a tensor into the copies that its result type names.

    `scale` is a scale known beforehand, the state of a delayed scheme or what a static one is decoded by, and
    `rng` the seed and offset of stochastic rounding. A matrix whose rows are in groups, each quantized as a matrix
    of its own, has the `ends` of these groups (see `grouped_gemm`); rows behind the last group are not quantized. The
    result `new_amax` is the amax of the source, where it is kept. `layer` names the layer whose state the op reads. It
    is empty where there is no state, so that equal quantizations are equal ops.

    Constraints:
    - quantize_c1: source is a ranked tensor of f32, bf16 or f16
    - quantize_c2: result is a !scaled.tensor of the source's shape and dtype
    - quantize_c3: role is input, weight or grad_output
    - quantize_c4: a delayed or static scheme needs a scale, and only static schemes and those with one scale per tensor
      take one
    - quantize_c5: stochastic rounding needs rng, and only stochastic rounding takes it
    - quantize_c6: only role grad_output is rounded stochastically
    - quantize_c7: only schemes with one amax per tensor or per row return a new_amax, and of a tensor in groups only
      those with one scale per tensor
    - quantize_c8: scale is an f32 scalar, or f32 for each group unless the scheme is static; new_amax is an f32 scalar,
      f32 for each group, or f32 for each row where one copy has a second level per row; rng is two 64-bit integers
    - quantize_c9: ends, a 32-bit integer for each group, is there for a matrix in groups and only then
    """

    assembly_format = '$role $source [ends($ends)] [scale($scale)] [rng($rng)] [at $layer = ""]'

    source: ext.Operand[Any]
    result: ext.Result[Any]
    role: ir.StringAttr
    layer: ir.StringAttr
    scale: ext.Operand[Any] | None = None
    rng: ext.Operand[Any] | None = None
    ends: ext.Operand[Any] | None = None
    new_amax: ext.Result[Any] | None = None

    def check(self) -> None:
        source = float_info(self.source, "quantize_c1", "source")
        result = scaled_info(self.result, "quantize_c2", "result")
        require_same_values(source, result, "quantize_c2")
        role = string_attribute(self, "role", ROLES, "quantize_c3")
        self._check_scale(source, result)
        self._check_new_amax(source, result)
        self._check_rng(source, result.schemes, role)
        self._check_ends(source, result)

    def _check_scale(self, source: TensorInfo, result: ScaledInfo) -> None:
        schemes = result.schemes
        if self.scale is None:
            source_of = next((scheme.source for scheme in schemes if scheme.source != "current"), None)
            require(source_of is None, "quantize_c4", f"a {source_of} scheme needs the operand scale, got none")
            return
        one_scale = all(scheme.family in ("tensor", "custom") or scheme.is_static for scheme in schemes)
        require(one_scale, "quantize_c4", "the operand scale needs schemes with one scale per tensor, got block scales")
        require_tensor(self.scale, source.with_(scale_shape(result), "f32"), "quantize_c8", "scale")

    def _check_new_amax(self, source: TensorInfo, result: ScaledInfo) -> None:
        if self.new_amax is None:
            return
        families = ("tensor",) if result.groups else ("tensor", "nvfp4", "custom")
        needed = "one scale per tensor" if result.groups else "one amax per tensor or per row"
        gives = all(scheme.family in families for scheme in result.schemes)
        require(gives, "quantize_c7", f"new_amax needs schemes with {needed}, got block scales alone")
        require_tensor(self.new_amax, source.with_(amax_shape(result), "f32"), "quantize_c8", "new_amax")

    def _check_rng(self, source: TensorInfo, schemes: tuple[Scheme, ...], role: str) -> None:
        stochastic = any(scheme.rounding == "stochastic" for scheme in schemes)
        has_rng = self.rng is not None
        message = f"rng must be there for stochastic rounding and only then, got {'one' if has_rng else 'none'}"
        require(stochastic == has_rng, "quantize_c5", message)
        require(
            not stochastic or role == "grad_output",
            "quantize_c6",
            f"stochastic rounding needs role grad_output, got {role}",
        )
        if self.rng is not None:
            require_tensor(self.rng, source.random_state(), "quantize_c8", "rng")

    def _check_ends(self, source: TensorInfo, result: ScaledInfo) -> None:
        is_wanted = result.groups > 0 and len(source.shape) == 2
        found = "none" if self.ends is None else "some"
        message = f"ends must be there for a matrix in groups and only then, got {found} for {self.result.type}"
        require(is_wanted == (self.ends is not None), "quantize_c9", message)
        if self.ends is not None:
            require_tensor(self.ends, source.group_ends(result.groups), "quantize_c9", "ends")


def quantize(
    source: ir.Value,
    row: Scheme | None,
    col: Scheme | None,
    *,
    role: str,
    layer: str = "",
    scale: ir.Value | None = None,
    rng: ir.Value | None = None,
    ends: ir.Value | None = None,
    groups: int = 0,
    new_amax: bool = False,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> QuantizeOp:
    """Build a `scaled.quantize` into a rowwise copy, a columnwise copy, or both."""
    info = float_info(source, "quantize_c1", "source")
    result = ScaledInfo(info.shape, info.dtype, row, col, groups)
    results = [result.type(), info.with_(amax_shape(result), "f32").type() if new_amax else None]
    attributes = {"role": ir.StringAttr.get(role), "layer": ir.StringAttr.get(layer)}
    return build(QuantizeOp, [source, scale, rng, ends], results, attributes, loc, ip)


def require_same_values(source: TensorInfo, result: ScaledInfo, constraint: str) -> None:
    """Require that a quantized tensor stands for the values of another."""
    require(
        shapes_agree(source.shape, result.shape) and source.dtype == result.dtype,
        constraint,
        f"result must stand for {format_shape(source.shape)} of {source.dtype}, "
        f"got {format_shape(result.shape)} of {result.dtype}",
    )


def scale_shape(info: ScaledInfo) -> Shape:
    """The shape of the scale that a tensor is quantized by: a scalar, or unless it is static one for each group."""
    is_static = any(scheme.is_static for scheme in info.schemes)
    return (info.groups,) if info.groups and not is_static else ()


def amax_shape(info: ScaledInfo) -> Shape:
    """The shape of a quantized tensor's amax: a scalar, one for each group, or one for each row."""
    if info.groups:
        return (info.groups,)
    per_row = any(scheme.second_level == "row" for scheme in info.schemes)
    return info.shape[:-1] if per_row else ()


class StoredOp(ScaledOp, name="stored", traits=[ext.Pure]):
    """The quantized tensor that a tensor is already: a parameter that is stored in low precision, or its transpose.

    Nothing is computed. The result has the codes and scales that the parameter holds.

    Constraints:
    - stored_c1: source is a ranked tensor of f32, bf16 or f16
    - stored_c2: result is a !scaled.tensor of the source's shape and dtype
    - stored_c3: result has one copy, rowwise, of a built-in scheme in the compact layout
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = float_info(self.source, "stored_c1", "source")
        result = scaled_info(self.result, "stored_c2", "result")
        require_same_values(source, result, "stored_c2")
        row = result.row
        fits = row is not None and result.col is None and not row.custom and row.layout == "compact"
        wanted = "one rowwise copy of a built-in scheme in the compact layout"
        require(fits, "stored_c3", f"result must have {wanted}, got {self.result.type}")


def stored(
    source: ir.Value,
    scheme: Scheme,
    *,
    groups: int = 0,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> StoredOp:
    """Build a `scaled.stored`."""
    info = float_info(source, "stored_c1", "source")
    return build(StoredOp, [source], [ScaledInfo(info.shape, info.dtype, scheme, None, groups).type()], {}, loc, ip)


class DequantizeOp(ScaledOp, name="dequantize", traits=[ext.Pure]):
    """Decode one copy of a quantized tensor. This is not the inverse of quantize, which loses precision.

    Constraints:
    - dequantize_c1: usage is rowwise or columnwise, and the source has that copy
    - dequantize_c2: the copy was not transformed by the random Hadamard transform
    - dequantize_c3: result is a tensor of f32, bf16 or f16 with the source's shape
    - dequantize_c4: the copy is in the compact layout
    """

    assembly_format = "$usage $source"

    source: ext.Operand[Any]
    result: ext.Result[Any]
    usage: ir.StringAttr

    def check(self) -> None:
        usage = string_attribute(self, "usage", USAGES, "dequantize_c1")
        source = scaled_info(self.source, "dequantize_c1", "source")
        scheme = source.copy_of(usage)
        require(scheme is not None, "dequantize_c1", f"source must have the {usage} copy, got none")
        assert scheme is not None
        message = f"the {usage} copy must be of the source's values, got transformed ones"
        require(not scheme.rht, "dequantize_c2", message)
        message = f"the {usage} copy must be in the compact layout, got layout {scheme.layout}"
        require(scheme.layout == "compact", "dequantize_c4", message)
        result = float_info(self.result, "dequantize_c3", "result")
        wanted, found = format_shape(source.shape), format_shape(result.shape)
        agree = shapes_agree(source.shape, result.shape)
        require(agree, "dequantize_c3", f"result must have shape {wanted}, got {found}")


def dequantize(
    source: ir.Value,
    result: ir.Type,
    *,
    usage: str = "rowwise",
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> DequantizeOp:
    """Build a `scaled.dequantize`."""
    return build(DequantizeOp, [source], [result], {"usage": ir.StringAttr.get(usage)}, loc, ip)


class TransposeOp(ScaledOp, name="transpose", traits=[ext.Pure]):
    """The copy of the other usage, made from the codes of the existing one.

    A rowwise copy becomes a columnwise one, or the other way round, with the same values. Two transposes are the
    identity.

    Constraints:
    - transpose_c1: source has exactly one copy
    - transpose_c2: its scales serve both usages: one per tensor, or 128x128, 32x32 or 16x16 tiles
    - transpose_c3: its scales are in the compact layout
    - transpose_c4: result is the source with that scheme in the other usage
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "transpose_c1", "source")
        agree = scaled_info(self.result, "transpose_c4", "result").agrees_with(transposed(source))
        usage = "columnwise" if source.row is not None else "rowwise"
        require(agree, "transpose_c4", f"result must be the source with its one copy {usage}, got {self.result.type}")


def transpose(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> TransposeOp:
    """Build a `scaled.transpose`."""
    return build(TransposeOp, [source], [transposed(scaled_info(source, "transpose_c1", "source")).type()], {}, loc, ip)


def transposed(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with its one copy in the other usage."""
    require(len(info.schemes) == 1, "transpose_c1", "source must have exactly one copy, got both")
    (scheme,) = info.schemes
    require(
        scheme.is_transposable,
        "transpose_c2",
        f"the scales of {scheme.block} blocks serve one usage only; quantize the other copy from the source",
    )
    require(scheme.layout == "compact", "transpose_c3", f"scales must be in the compact layout, got {scheme.layout}")
    return info.with_schemes(info.col, info.row)


class NarrowOp(ScaledOp, name="narrow", traits=[ext.Pure]):
    """A quantized tensor with only one of its two copies, to be kept for a GEMM that reads that one.

    Constraints:
    - narrow_c1: source has both copies
    - narrow_c2: result is the source with one of them
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "narrow_c1", "source")
        require(len(source.schemes) == 2, "narrow_c1", "source must have both copies, got one")
        result = scaled_info(self.result, "narrow_c2", "result")
        fits = any(result.agrees_with(narrowed(source, usage)) for usage in USAGES)
        require(fits, "narrow_c2", f"result must be the source with one of its copies, got {self.result.type}")


def narrow(
    source: ir.Value, usage: str, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
) -> NarrowOp:
    """Build a `scaled.narrow` to the copy of a usage."""
    return build(NarrowOp, [source], [narrowed(scaled_info(source, "narrow_c1", "source"), usage).type()], {}, loc, ip)


def narrowed(info: ScaledInfo, usage: str) -> ScaledInfo:
    """The quantized tensor with one of its copies."""
    return info.with_schemes(info.row, None) if usage == "rowwise" else info.with_schemes(None, info.col)
