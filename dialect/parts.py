"""Quantized tensors that outlive a program, as the plain tensors that hold them: `split`, `join`.

A KV cache is such a tensor. It is one matrix, whose rows have a scale each, or a given one together, so that rows can
be appended and removed.
"""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require
from steelyard.dialect.layout import flat_shape
from steelyard.dialect.types import ScaledInfo, TensorInfo, require_tensor, scaled_info, tensor_info

_BYTES = {"torch": "ui8", "builtin": "i8"}


class SplitOp(ScaledOp, name="split", traits=[ext.Pure]):
    """The codes and scales of a rowwise copy. The dims of the tensor before its last are flattened.

    Constraints:
    - split_c1: source has a rowwise copy in FP8 with one scale per row, or with one static scale
    - split_c2: codes are a matrix of bytes, and scales an f32 for each of its rows, or one that is static
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    codes: ext.Result[Any]
    scales: ext.Result[Any]

    def check(self) -> None:
        source = _kept_info(self.source, "split_c1", "source")
        _require_parts(self.codes, self.scales, source, "split_c2")


def split(
    source: ir.Value, namespace: str, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
) -> SplitOp:
    """Build a `scaled.split` into tensors of a namespace: `torch` or `builtin`."""
    info = scaled_info(source, "split_c1", "source")
    return build(SplitOp, [source], [part.type() for part in _parts(info, namespace)], {}, loc, ip)


class JoinOp(ScaledOp, name="join", traits=[ext.Pure]):
    """The quantized matrix that codes and scales hold.

    Constraints:
    - join_c1: result is a matrix with one copy, rowwise, in FP8 with one scale per row, or with one static scale
    - join_c2: codes are a matrix of bytes, and scales an f32 for each of its rows, or one that is static
    """

    assembly_format = "$codes, $scales"

    codes: ext.Operand[Any]
    scales: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        result = _kept_info(self.result, "join_c1", "result")
        message = f"result must be a matrix with one copy, got {self.result.type}"
        require(len(result.shape) == 2 and result.col is None, "join_c1", message)
        _require_parts(self.codes, self.scales, result, "join_c2")


def join(
    codes: ir.Value,
    scales: ir.Value,
    result: ScaledInfo,
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> JoinOp:
    """Build a `scaled.join`."""
    return build(JoinOp, [codes, scales], [result.type()], {}, loc, ip)


def _kept_info(value: ir.Value, constraint: str, name: str) -> ScaledInfo:
    info = scaled_info(value, constraint, name)
    scheme = info.row
    fits = scheme is not None and (scheme.family == "row" or (scheme.family == "tensor" and scheme.is_static))
    wanted = "a rowwise copy in FP8 with one scale per row, or with one static scale"
    require(fits, constraint, f"{name} must have {wanted}, got {value.type}")
    return info


def _require_parts(codes: ir.Value, scales: ir.Value, info: ScaledInfo, constraint: str) -> None:
    known = tensor_info(codes.type)
    expected = _parts(info, "torch" if known is None else known.namespace)
    for value, part, name in zip((codes, scales), expected, ("codes", "scales"), strict=True):
        require_tensor(value, part, constraint, name)


def _parts(info: ScaledInfo, namespace: str) -> tuple[TensorInfo, TensorInfo]:
    rows, columns = flat_shape(info.shape)
    scales = () if info.row is not None and info.row.is_static else (rows, 1)
    return TensorInfo(namespace, (rows, columns), _BYTES[namespace]), TensorInfo(namespace, scales, "f32")
