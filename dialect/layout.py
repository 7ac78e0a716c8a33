"""What a target's GEMMs may need of a tensor's layout: `flatten`, `pad`, `unpad`, `turn`, `swizzle`, `pack`."""

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
    - pad_c2: there is one multiple per dim, each at least 1
    - pad_c3: each dim of the result is the source's, rounded up
    - pad_c4: copies are in the compact layout
    """

    assembly_format = "$source to multiples($multiples...)"

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
        layouts = [] if isinstance(source, TensorInfo) else [scheme.layout for scheme in source.schemes]
        compact = all(layout == "compact" for layout in layouts)
        require(compact, "pad_c4", f"copies must be in the compact layout, got {', '.join(layouts)}")


def pad(
    source: ir.Value,
    multiples: Sequence[int],
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> PadOp:
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
    """Keep the first elements of each dim. `sizes` are the sizes of the result's dims that are known only at run time.

    Constraints:
    - unpad_c1: source and result are tensors of f32, bf16 or f16, or both !scaled.tensor with the same copies
    - unpad_c2: result has as many dims as the source, none larger
    - unpad_c3: there is one size, an index or a !torch.int, for each dim of the result known only at run time
    """

    assembly_format = "$source [sizes($sizes...)]"

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
) -> UnpadOp:
    """Build a `scaled.unpad` to a shape."""
    result = replace(_either_info(source, "unpad_c1", "source"), shape=shape)
    return build(UnpadOp, [source, list(sizes)], [result.type()], {}, loc, ip)


class FlattenOp(ScaledOp, name="flatten", traits=[ext.Pure]):
    """A quantized tensor as the matrix that it is stored as: the dims before the last become one.

    Constraints:
    - flatten_c1: source is a !scaled.tensor with at least one dim before the last
    - flatten_c2: result is the source as a matrix
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        wanted = flattened(scaled_info(self.source, "flatten_c1", "source"))
        agree = scaled_info(self.result, "flatten_c2", "result").agrees_with(wanted)
        found = self.result.type
        require(agree, "flatten_c2", f"result must be the source with shape {format_shape(wanted.shape)}, got {found}")


def flatten(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> FlattenOp:
    """Build a `scaled.flatten`."""
    return build(FlattenOp, [source], [flattened(scaled_info(source, "flatten_c1", "source")).type()], {}, loc, ip)


def flattened(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor as a matrix."""
    found = format_shape(info.shape)
    require(len(info.shape) > 1, "flatten_c1", f"source must have at least one dim before the last, got {found}")
    return replace(info, shape=flat_shape(info.shape))


def flat_shape(shape: Shape) -> tuple[int | None, int | None]:
    """The dims before the last as one."""
    rows = 1
    for size in shape[:-1]:
        if size is None:
            return None, shape[-1]
        rows *= size
    return rows, shape[-1]


class TurnOp(ScaledOp, name="turn", traits=[ext.Pure]):
    """Turn the codes of a columnwise MX copy, which are stored as in the matrix, so that they lie along the reduction.

    Scales stay as they are. Columnwise copies of other families are always stored turned.

    Constraints:
    - turn_c1: source is a matrix with one copy, a columnwise one with f8E8M0FNU scales in the compact layout
    - turn_c2: result is the source with the turned layout
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "turn_c1", "source")
        agree = scaled_info(self.result, "turn_c2", "result").agrees_with(turned(source))
        require(agree, "turn_c2", f"result must be the source with layout turned, got {self.result.type}")


def turn(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> TurnOp:
    """Build a `scaled.turn`."""
    return build(TurnOp, [source], [turned(scaled_info(source, "turn_c1", "source")).type()], {}, loc, ip)


def turned(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with the turned layout."""
    col = info.col
    fits = len(info.shape) == 2 and info.row is None and col is not None and (col.family, col.layout) == _TURNS
    found = f"{format_shape(info.shape)} with {', '.join(f'{s.block} in layout {s.layout}' for s in info.schemes)}"
    require(fits, "turn_c1", f"source must be a matrix with one compact columnwise MX copy, got {found}")
    assert col is not None
    return info.with_schemes(None, replace(col, layout="turned"))


_TURNS = ("mx", "compact")


class SwizzleOp(ScaledOp, name="swizzle", traits=[ext.Pure]):
    """Bring the block scales of every copy into the order that GPU GEMMs read.

    Constraints:
    - swizzle_c1: every copy of the source has block scales in the compact layout, or the turned one where MX is
      columnwise
    - swizzle_c2: result is the source with the gemm layout in every copy
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "swizzle_c1", "source")
        agree = scaled_info(self.result, "swizzle_c2", "result").agrees_with(swizzled(source))
        found = self.result.type
        require(agree, "swizzle_c2", f"result must be the source with layout gemm in every copy, got {found}")


def swizzle(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> SwizzleOp:
    """Build a `scaled.swizzle`."""
    return build(SwizzleOp, [source], [swizzled(scaled_info(source, "swizzle_c1", "source")).type()], {}, loc, ip)


def swizzled(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with the gemm layout in every copy."""
    for scheme, columnwise in ((info.row, False), (info.col, True)):
        if scheme is None:
            continue
        layout = "turned" if columnwise and scheme.family == "mx" else "compact"
        fits = scheme.has_blocks and scheme.layout == layout
        found = f"block {scheme.block} in layout {scheme.layout}"
        require(fits, "swizzle_c1", f"every copy must have block scales in the {layout} layout, got {found}")
    row, col = (scheme and replace(scheme, layout="gemm") for scheme in (info.row, info.col))
    return info.with_schemes(row, col)


class PackOp(ScaledOp, name="pack", traits=[ext.Pure]):
    """Bring the codes and scales of every copy of a weight into the order that the CPU's GEMMs read.

    Constraints:
    - pack_c1: source is a matrix of known size, or a stack of matrices in groups, and every copy is f4E2M1FN in the
      compact layout
    - pack_c2: result is the source with the packed layout in every copy
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source = scaled_info(self.source, "pack_c1", "source")
        agree = scaled_info(self.result, "pack_c2", "result") == packed(source)
        found = self.result.type
        require(agree, "pack_c2", f"result must be the source with layout packed in every copy, got {found}")


def pack(source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> PackOp:
    """Build a `scaled.pack`."""
    return build(PackOp, [source], [packed(scaled_info(source, "pack_c1", "source")).type()], {}, loc, ip)


def packed(info: ScaledInfo) -> ScaledInfo:
    """The quantized tensor with the packed layout in every copy."""
    fits = len(info.shape) == (3 if info.groups else 2) and None not in info.shape
    wanted = "a matrix of known size, or a stack of matrices in groups"
    require(fits, "pack_c1", f"source must be {wanted}, got {format_shape(info.shape)}")
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
