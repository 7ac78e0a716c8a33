"""What a target's GEMMs may need of a tensor's layout: `pad`, `unpad`, `swizzle`, `pack`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, attribute_of, build, require
from steelyard.dialect.types import (
    ScaledInfo,
    Shape,
    TensorInfo,
    TensorType,
    float_info,
    format_shape,
    scaled_info,
    shapes_agree,
)

SIZE_TYPES = ("index", "!torch.int")


class PadOp(ScaledOp, name="pad", traits=[ext.Pure]):
    """Round each dim up to a multiple, with zeros at its end.

    Constraints:
    - pad_c1: source and result are tensors of f32, bf16 or f16, or both !scaled.tensor with the same copies
    - pad_c2: there is one multiple a dim, each at least 1
    - pad_c3: each dim of the result is the source's, rounded up
    """

    source: ext.Operand[Any]
    result: ext.Result[Any]
    multiples: Any

    def check(self) -> None:
        source = _either_info(self.source, "pad_c1", "source")
        result = _either_info(self.result, "pad_c1", "result")
        _require_alike(source, result, "pad_c1")
        multiples = list(attribute_of(self, "multiples", ir.DenseI64ArrayAttr))
        _require_multiples(multiples, source.shape)
        wanted = padded_shape(source.shape, multiples)
        found = format_shape(result.shape)
        agree = shapes_agree(wanted, result.shape)
        require(agree, "pad_c3", f"result must have shape {format_shape(wanted)}, got {found}")


def pad(
    source: ir.Value,
    multiples: Sequence[int],
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> ScaledOp:
    """Build a `scaled.pad`."""
    info = _either_info(source, "pad_c1", "source")
    _require_multiples(multiples, info.shape)
    result = replace(info, shape=padded_shape(info.shape, multiples))
    return build(PadOp, [source], [result.type()], {"multiples": ir.DenseI64ArrayAttr.get(list(multiples))}, loc, ip)


def padded_shape(shape: Shape, multiples: Sequence[int]) -> Shape:
    """Each size rounded up to its multiple; one known only at run time stays so."""
    pairs = zip(shape, multiples, strict=True)
    return tuple(None if size is None else -(-size // multiple) * multiple for size, multiple in pairs)


class UnpadOp(ScaledOp, name="unpad", traits=[ext.Pure]):
    """Keep the first elements of each dim. `sizes` are those of the result's dims that are known only at run time.

    Constraints:
    - unpad_c1: source and result are tensors of f32, bf16 or f16, or both !scaled.tensor with the same copies
    - unpad_c2: result has as many dims as the source, none larger
    - unpad_c3: there is one size, an index or a !torch.int, for each dim of the result known only at run time
    """

    source: ext.Operand[Any]
    sizes: Sequence[ext.Operand[Any]]
    result: ext.Result[Any]

    def check(self) -> None:
        source = _either_info(self.source, "unpad_c1", "source")
        result = _either_info(self.result, "unpad_c1", "result")
        _require_alike(source, result, "unpad_c1")
        shrinks = len(source.shape) == len(result.shape) and all(map(_may_shrink, source.shape, result.shape))
        before, after = format_shape(source.shape), format_shape(result.shape)
        require(shrinks, "unpad_c2", f"no dim of the result may be larger than in {before}, got {after}")
        unknown = result.shape.count(None)
        sizes = [str(size.type) for size in self.sizes]
        fits = len(sizes) == unknown and all(type_ in SIZE_TYPES for type_ in sizes)
        found = ", ".join(sizes)
        require(fits, "unpad_c3", f"there must be {unknown} sizes of type index or !torch.int, got ({found})")


def unpad(
    source: ir.Value,
    shape: Shape,
    sizes: Sequence[ir.Value] = (),
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> ScaledOp:
    """Build a `scaled.unpad` to a shape."""
    result = replace(_either_info(source, "unpad_c1", "source"), shape=shape)
    return build(UnpadOp, [source, list(sizes)], [result.type()], {}, loc, ip)


class SwizzleOp(ScaledOp, name="swizzle", traits=[ext.Pure]):
    """Bring the block scales of every copy into the order that GPU GEMMs read.

    Constraints:
    - swizzle_c1: every copy of the source has block scales in the compact layout
    - swizzle_c2: result is the source with the gemm layout in every copy
    """

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "swizzle_c1", "source")
        agree = scaled_info(self.result, "swizzle_c2", "result").agrees_with(swizzled(source))
        found = self.result.type
        require(agree, "swizzle_c2", f"result must be the source with layout gemm in every copy, got {found}")


def swizzle(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> ScaledOp:
    """Build a `scaled.swizzle`."""
    return build(SwizzleOp, [source], [swizzled(scaled_info(source, "swizzle_c1", "source")).type()], {}, loc, ip)


def swizzled(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with the gemm layout in every copy."""
    for scheme in info.schemes:
        compact_blocks = scheme.block != "tensor" and scheme.layout == "compact"
        found = f"block {scheme.block} in layout {scheme.layout}"
        require(compact_blocks, "swizzle_c1", f"every copy must have block scales in the compact layout, got {found}")
    row, col = (scheme and replace(scheme, layout="gemm") for scheme in (info.row, info.col))
    return info.with_schemes(row, col)


class PackOp(ScaledOp, name="pack", traits=[ext.Pure]):
    """Bring the codes and scales of every copy of a weight into the order that GEMMs of the CPU read.

    Constraints:
    - pack_c1: source is a matrix of known size, and every copy is in f4E2M1FN in the compact layout
    - pack_c2: result is the source with the packed layout in every copy
    """

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "pack_c1", "source")
        agree = scaled_info(self.result, "pack_c2", "result") == packed(source)
        found = self.result.type
        require(agree, "pack_c2", f"result must be the source with layout packed in every copy, got {found}")


def pack(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> ScaledOp:
    """Build a `scaled.pack`."""
    return build(PackOp, [source], [packed(scaled_info(source, "pack_c1", "source")).type()], {}, loc, ip)


def packed(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with the packed layout in every copy."""
    is_matrix = len(info.shape) == 2 and None not in info.shape
    require(is_matrix, "pack_c1", f"source must be a matrix of known size, got {format_shape(info.shape)}")
    for scheme in info.schemes:
        compact = scheme.element == "f4E2M1FN" and scheme.layout == "compact"
        found = f"{scheme.element} in layout {scheme.layout}"
        require(compact, "pack_c1", f"every copy must be in f4E2M1FN in the compact layout, got {found}")
    row, col = (scheme and replace(scheme, layout="packed") for scheme in (info.row, info.col))
    return info.with_schemes(row, col)


def _either_info(value: ir.Value, constraint: str, name: str) -> TensorInfo | ScaledInfo:
    if isinstance(value.type, TensorType):
        return scaled_info(value, constraint, name)
    return float_info(value, constraint, name)


def _require_alike(source: TensorInfo | ScaledInfo, result: TensorInfo | ScaledInfo, constraint: str) -> None:
    alike = type(source) is type(result) and replace(source, shape=()) == replace(result, shape=())
    require(alike, constraint, "source and result must differ in shape only")


def _require_multiples(multiples: Sequence[int], shape: Shape) -> None:
    fits = len(multiples) == len(shape) and all(multiple >= 1 for multiple in multiples)
    require(fits, "pad_c2", f"there must be {len(shape)} multiples, each at least 1, got {list(multiples)}")


def _may_shrink(size: int | None, kept: int | None) -> bool:
    return size is None or kept is None or kept <= size
