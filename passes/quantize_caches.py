"""`scaled-quantize-caches`."""

from collections.abc import Callable

from torch_mlir import ir

from steelyard.dialect.layout import flat_shape
from steelyard.dialect.parts import join, split
from steelyard.dialect.quantize import dequantize, quantize
from steelyard.dialect.types import ScaledInfo, float_info, tensor_info
from steelyard.formats.schemes import CACHED
from steelyard.ir.torch_ops import int_constant, op_name, reshaped_as, size_of, walk_ops
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def quantize_caches(module: ir.Operation) -> None:
    """Quantize what a KV cache takes in, and decode what is read from it.

    Takes the operators of the cache, `torch.steelyard.encode_rows` and `torch.steelyard.decode_rows`. Leaves for the
    first a `scaled.quantize` and the `scaled.split` of its result into the codes and scales that the cache keeps, and
    for the second a `scaled.join` of those and its `scaled.dequantize`.
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


def _decode(op: ir.Operation) -> list[ir.Value]:
    codes, scales, _ = op.operands
    result = float_info(op.result, "decode_rows", "result")
    matrix = flat_shape(result.shape)
    flat_codes = reshaped_as(codes, result.with_(matrix, "ui8").type())
    flat_scales = reshaped_as(scales, result.with_((matrix[0], 1), "f32").type())
    joined = join(flat_codes, flat_scales, ScaledInfo(matrix, result.dtype, CACHED, None)).result
    return [_viewed(dequantize(joined, result.with_(matrix).type()).result, op.result.type, codes)]


_OPERATORS: dict[str, Callable[[ir.Operation], list[ir.Value]]] = {
    "torch.steelyard.encode_rows": _encode,
    "torch.steelyard.decode_rows": _decode,
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
