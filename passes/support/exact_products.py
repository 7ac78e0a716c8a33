"""The product that a quantized GEMM stands for, in high precision: of what its operands were quantized from."""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp, grouped_matmul
from steelyard.dialect.matmul import GemmOp, matmul
from steelyard.dialect.quantize import NarrowOp, QuantizeOp, StoredOp, TransposeOp, dequantize
from steelyard.dialect.types import TensorInfo, TensorType, info_namespace, scaled_info_of, tensor_info
from steelyard.ir.torch_ops import cast, defining_op


def quantized_from(value: ir.Value) -> ir.Value | None:
    """The tensor that a quantized one was made from; None if that is not there, as of a stored parameter."""
    op = defining_op(value)
    while op is not None and isinstance(op.opview, TransposeOp | NarrowOp):
        op = defining_op(op.operands[0])
    return op.opview.source if op is not None and isinstance(op.opview, QuantizeOp) else None


def product_in_f32(gemm: GemmOp | GroupedGemmOp) -> ir.Value | None:
    """The product of a GEMM's operands in f32, without bias, at the current place; None if one is not known."""
    operands = _operands(gemm)
    if operands is None:
        return None
    lhs, rhs = (value if _dtype(value) == "f32" else cast(value, "f32") for value in operands)
    return _multiply(gemm, lhs, rhs)


def product_of_model(gemm: GemmOp | GroupedGemmOp) -> ir.Value | None:
    """A GEMM as the model has it, with its bias and in its dtypes, at the current place; None if that is not known."""
    operands = _operands(gemm)
    if operands is None:
        return None
    bias = gemm.bias if isinstance(gemm, GemmOp) else None
    return _multiply(gemm, *operands, bias=bias, dtype=_dtype(gemm.result))


def _multiply(
    gemm: GemmOp | GroupedGemmOp, lhs: ir.Value, rhs: ir.Value, bias: ir.Value | None = None, dtype: str | None = None
) -> ir.Value:
    kind, layer = gemm.kind.value, gemm.layer.value
    if isinstance(gemm, GroupedGemmOp):
        return grouped_matmul(lhs, rhs, gemm.ends, kind=kind, layer=layer, dtype=dtype).result
    batch_dims = gemm.batch_dims.value
    return matmul(lhs, rhs, kind=kind, layer=layer, batch_dims=batch_dims, bias=bias, dtype=dtype).result


def _operands(gemm: GemmOp | GroupedGemmOp) -> tuple[ir.Value, ir.Value] | None:
    """Both operands in high precision."""
    lhs, rhs = (_values(operand, gemm) for operand in (gemm.lhs, gemm.rhs))
    return None if lhs is None or rhs is None else (lhs, rhs)


def _values(operand: ir.Value, gemm: GemmOp | GroupedGemmOp) -> ir.Value | None:
    if not isinstance(operand.type, TensorType):
        return operand
    found = quantized_from(operand)
    return _decoded(operand, gemm) if found is None else found


def _dtype(value: ir.Value) -> str:
    info = tensor_info(value.type)
    assert info is not None, "operands and results of products are ranked tensors"
    return info.dtype


def _decoded(operand: ir.Value, gemm: GemmOp | GroupedGemmOp) -> ir.Value | None:
    """What a quantized tensor that was made from nothing else stands for."""
    info, maker = scaled_info_of(operand), defining_op(operand)
    if info.row is None or info.row.custom or info.groups or maker is None or not isinstance(maker.opview, StoredOp):
        return None
    return dequantize(operand, TensorInfo(info_namespace(gemm.result), info.shape, info.dtype).type()).result
