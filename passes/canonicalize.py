"""`scaled-canonicalize`."""

from typing import TypeVar

from torch_mlir import ir
from torch_mlir.rewrite import GreedyRewriteConfig, PatternRewriter, RewritePatternSet, apply_patterns_and_fold_greedily

from steelyard.dialect.layout import PadOp, UnpadOp
from steelyard.dialect.quantize import TransposeOp
from steelyard.dialect.types import Shape, TensorType, tensor_info
from steelyard.passes.pipeline.registry import register_pass

_Op = TypeVar("_Op", bound=ir.OpView)

NO_MATCH = True
"""The bindings read a truthy return as a pattern that did not match."""


@register_pass
def canonicalize(module: ir.Operation, *, max_rewrites: int = 1_000_000) -> None:
    """Simplify `scaled` ops to their canonical form.

    Takes any IR. Leaves it without transposes of transposes, pads that add nothing, unpads that remove nothing, unpads
    of the pad they undo, and dead ops. A dequantize of a quantize stays, because it loses precision. `max-rewrites`
    bounds the work.
    """
    patterns = RewritePatternSet()
    patterns.add(TransposeOp, fold_transpose_of_transpose)
    patterns.add(PadOp, fold_empty_pad)
    patterns.add(UnpadOp, fold_empty_unpad)
    patterns.add(UnpadOp, fold_unpad_of_pad)
    config = GreedyRewriteConfig()
    config.max_num_rewrites = max_rewrites
    apply_patterns_and_fold_greedily(module, patterns.freeze(), config)


def fold_transpose_of_transpose(op: TransposeOp, rewriter: PatternRewriter) -> bool | None:
    """transpose(transpose(x)) -> x"""
    inner = _defining(op.source, TransposeOp)
    if inner is None or inner.source.type != op.result.type:
        return NO_MATCH
    rewriter.replace_op(op, [inner.source])
    return None


def fold_empty_pad(op: PadOp, rewriter: PatternRewriter) -> bool | None:
    """pad(x) -> x where every dim is a multiple already."""
    sizes = zip(_shape(op.source), list(op.multiples), strict=True)
    adds_nothing = all(multiple == 1 or (size is not None and size % multiple == 0) for size, multiple in sizes)
    if not adds_nothing or op.source.type != op.result.type:
        return NO_MATCH
    rewriter.replace_op(op, [op.source])
    return None


def fold_empty_unpad(op: UnpadOp, rewriter: PatternRewriter) -> bool | None:
    """unpad(x) -> x where every dim keeps its size."""
    keeps_all = None not in _shape(op.result) or _sizes_are_those_of(op, op.source, _shape(op.source))
    if op.source.type != op.result.type or not keeps_all:
        return NO_MATCH
    rewriter.replace_op(op, [op.source])
    return None


def fold_unpad_of_pad(op: UnpadOp, rewriter: PatternRewriter) -> bool | None:
    """unpad(pad(x)) -> x where the result has x's sizes."""
    inner = _defining(op.source, PadOp)
    if inner is None or inner.source.type != op.result.type:
        return NO_MATCH
    if not _sizes_are_those_of(op, inner.source, _shape(op.result)):
        return NO_MATCH
    rewriter.replace_op(op, [inner.source])
    return None


def _defining(value: ir.Value, op_class: type[_Op]) -> _Op | None:
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView):
        return None
    view = owner.opview
    return view if isinstance(view, op_class) else None


def _shape(value: ir.Value) -> Shape:
    type_ = value.type
    if isinstance(type_, TensorType):
        return type_.info.shape
    info = tensor_info(type_)
    assert info is not None
    return info.shape


def _sizes_are_those_of(op: UnpadOp, tensor: ir.Value, shape: Shape) -> bool:
    """Whether each size operand is the size of that dim of a tensor."""
    unknown_dims = [dim for dim, size in enumerate(shape) if size is None]
    return all(_is_size(size, tensor, dim) for size, dim in zip(op.sizes, unknown_dims, strict=True))


def _is_size(size: ir.Value, tensor: ir.Value, dim: int) -> bool:
    owner = size.owner
    if not isinstance(owner, ir.Operation | ir.OpView):
        return False
    if owner.operation.name not in ("tensor.dim", "torch.aten.size.int"):
        return False
    source, index = owner.operands
    return source == tensor and _constant(index) == dim


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView):
        return None
    attribute = owner.operation.attributes.get("value")
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
