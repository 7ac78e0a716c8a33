"""`scaled-quantize-caches`."""

from collections.abc import Callable

from torch_mlir import ir

from steelyard.dialect.layout import flat_shape
from steelyard.dialect.parts import join, split
from steelyard.dialect.quantize import dequantize, quantize
from steelyard.dialect.scale import count_saturated
from steelyard.dialect.types import ScaledInfo, float_info, tensor_info
from steelyard.formats.schemes import CACHED, CACHED_STATIC, Scheme
from steelyard.ir.torch_ops import int_constant, op_name, reshaped_as, size_of, walk_ops
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def quantize_caches(module: ir.Operation) -> None:
    """Quantize what a KV cache takes in, and decode what is read from it.

    Takes the operators of the cache, `torch.steelyard.encode_rows` and `torch.steelyard.decode_rows`. Leaves for the
    first a `scaled.quantize` and the `scaled.split` of its result into the codes and scales that the cache keeps, and
    for the second a `scaled.join` of those and its `scaled.dequantize`. `encode_static` and `decode_static` become the
    same ops with a static scheme: their scale is an operand, and the cache keeps codes alone. What that scale saturates
    is counted: `count_saturated` becomes a `scaled.count_saturated`.
    """
    for op in walk_ops(module):
        replace = _OPERATORS.get(op_name(op))
        if replace is None:
            continue
        with ir.InsertionPoint(op), op.location:
            made = replace(op)
        for old, new in zip(op.results, made, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _encode(op: ir.Operation) -> list[ir.Value]:
    (source,) = op.operands
    parts = split(quantize(source, CACHED, None, role="input").result, "torch")
    return [_viewed(part, result.type, source) for part, result in zip(parts.results, op.results, strict=True)]


def _encode_static(op: ir.Operation) -> list[ir.Value]:
    source, scale = op.operands
    parts = split(quantize(source, CACHED_STATIC, None, role="input", scale=scale).result, "torch")
    return [_viewed(parts.codes, op.result.type, source)]


def _decode(op: ir.Operation) -> list[ir.Value]:
    codes, scales, _ = op.operands
    result = float_info(op.result, "decode_rows", "result")
    rows, _ = flat_shape(result.shape)
    return _joined(op, codes, reshaped_as(scales, result.with_((rows, 1), "f32").type()), CACHED)


def _decode_static(op: ir.Operation) -> list[ir.Value]:
    codes, scale, _ = op.operands
    return _joined(op, codes, scale, CACHED_STATIC)


def _joined(op: ir.Operation, codes: ir.Value, scales: ir.Value, scheme: Scheme) -> list[ir.Value]:
    """The values of the matrix that codes and scales hold, in the shape of an op's result."""
    result = float_info(op.result, op.name, "result")
    matrix = flat_shape(result.shape)
    flat_codes = reshaped_as(codes, result.with_(matrix, "ui8").type())
    joined = join(flat_codes, scales, ScaledInfo(matrix, result.dtype, scheme, None)).result
    return [_viewed(dequantize(joined, result.with_(matrix).type()).result, op.result.type, codes)]


def _count(op: ir.Operation) -> list[ir.Value]:
    source, scale, count = op.operands
    return [count_saturated(source, scale, count, CACHED_STATIC).result]


_OPERATORS: dict[str, Callable[[ir.Operation], list[ir.Value]]] = {
    "torch.steelyard.encode_rows": _encode,
    "torch.steelyard.decode_rows": _decode,
    "torch.steelyard.encode_static": _encode_static,
    "torch.steelyard.decode_static": _decode_static,
    "torch.steelyard.count_saturated": _count,
}


def _viewed(matrix: ir.Value, type_: ir.Type, like: ir.Value) -> ir.Value:
    """A matrix with its rows in the dims of another tensor."""
    if matrix.type == type_:
        return matrix
    info = tensor_info(type_)
    assert info is not None
    sizes = [size_of(like, dim) if size is None else int_constant(size) for dim, size in enumerate(info.shape)]
    shape = ir.Operation.create(
        "torch.prim.ListConstruct", results=[ir.Type.parse("!torch.list<int>")], operands=sizes
    ).result
    return ir.Operation.create("torch.aten.view", results=[type_], operands=[matrix, shape]).result
