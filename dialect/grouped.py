"""The matrix multiplications of experts: `grouped_matmul` in high precision, `grouped_gemm` on quantized tensors.

The rows of an activation are in E groups, one after the other. Each group is multiplied by the weight of its expert:

| kind  | computes           | lhs        | rhs          | result       |
|-------|--------------------|------------|--------------|--------------|
| fprop | y_e = x_e w_e^T    | x [S, K]   | w [E, N, K]  | y [S, N]     |
| dgrad | dx_e = dy_e w_e    | dy [S, N]  | w [E, N, K]  | dx [S, K]    |
| wgrad | dw_e = dy_e^T x_e  | dy [S, N]  | x [S, K]     | dw [E, N, K] |

`ends` says where each group ends: group e consists of the rows from ends[e - 1], or 0, to ends[e]. These do not
decrease, and the last is at most S; this is known only at run time. A group may have no rows. Rows behind the last
group belong to no expert: they are zero in y and dx, and count for nothing in dw.
"""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, build, require, string_attribute
from steelyard.dialect.matmul import copies_read, lhs_info, require_pair, require_result
from steelyard.dialect.types import (
    ScaledInfo,
    Shape,
    TensorInfo,
    float_info,
    format_shape,
    require_tensor,
    scaled_info,
    sizes_agree,
    tensor_info,
)
from steelyard.formats.gemms import KINDS


class GroupedMatmulOp(ScaledOp, name="grouped_matmul", traits=[ext.Pure]):
    """The products of experts that a recipe may quantize, still in high precision.

    Constraints:
    - grouped_matmul_c1: kind is fprop, dgrad or wgrad
    - grouped_matmul_c2: lhs, rhs and result are ranked tensors of f32, bf16 or f16, all builtin or all of torch
    - grouped_matmul_c3: lhs and rhs have one dtype
    - grouped_matmul_c4: lhs is a matrix; rhs is a stack of one matrix per group, or a matrix where kind is wgrad
    - grouped_matmul_c5: the reduced dims agree
    - grouped_matmul_c6: ends is a 32-bit integer for each group
    - grouped_matmul_c7: the result has the shape of the product
    """

    assembly_format = '$kind $lhs, $rhs ends($ends) [at $layer = ""]'

    lhs: ext.Operand[Any]
    rhs: ext.Operand[Any]
    ends: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    layer: ir.StringAttr

    def check(self) -> None:
        kind = string_attribute(self, "kind", KINDS, "grouped_matmul_c1")
        lhs, rhs, result = (
            float_info(value, "grouped_matmul_c2", name)
            for name, value in (("lhs", self.lhs), ("rhs", self.rhs), ("result", self.result))
        )
        require(
            lhs.namespace == rhs.namespace == result.namespace,
            "grouped_matmul_c2",
            f"lhs, rhs and result must all be builtin or all torch tensors, got {lhs}, {rhs} and {result}",
        )
        found = f"{lhs.dtype} and {rhs.dtype}"
        require(lhs.dtype == rhs.dtype, "grouped_matmul_c3", f"lhs and rhs must have one dtype, got {found}")
        groups = group_count(self.ends, lhs, "grouped_matmul_c6")
        product = grouped_shape(kind, lhs.shape, rhs.shape, groups, "grouped_matmul", 4)
        require_result(result.shape, product, "grouped_matmul_c7")


def grouped_matmul(
    lhs: ir.Value,
    rhs: ir.Value,
    ends: ir.Value,
    *,
    kind: str,
    layer: str = "",
    dtype: str | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> GroupedMatmulOp:
    """Build a `scaled.grouped_matmul`; the result has lhs's dtype unless one is given."""
    info, other = float_info(lhs, "grouped_matmul_c2", "lhs"), float_info(rhs, "grouped_matmul_c2", "rhs")
    groups = group_count(ends, info, "grouped_matmul_c6")
    shape = grouped_shape(kind, info.shape, other.shape, groups, "grouped_matmul", 4)
    return build(
        GroupedMatmulOp, [lhs, rhs, ends], [info.with_(shape, dtype).type()], _attributes(kind, layer), loc, ip
    )


class GroupedGemmOp(ScaledOp, name="grouped_gemm", traits=[ext.Pure]):
    """The products of experts on quantized tensors. Each group, and each expert, is quantized as a matrix of its own.

    Constraints:
    - grouped_gemm_c1: kind is fprop, dgrad or wgrad
    - grouped_gemm_c2: lhs and rhs are !scaled.tensor with the copy this kind reads, which a gemm of this kind can
      multiply (gemm_c2 to gemm_c7, gemm_c16 and gemm_c17); lhs of fprop and dgrad may be a plain tensor
    - grouped_gemm_c3: what is quantized is in as many groups as there are ends, 32-bit integers
    - grouped_gemm_c4: lhs is a matrix; rhs is a stack of one matrix per group, or a matrix where kind is wgrad
    - grouped_gemm_c5: the reduced dims agree
    - grouped_gemm_c6: the result is a tensor of f32, bf16 or f16 with the shape of the product
    """

    assembly_format = '$kind $lhs, $rhs ends($ends) [at $layer = ""]'

    lhs: ext.Operand[Any]
    rhs: ext.Operand[Any]
    ends: ext.Operand[Any]
    result: ext.Result[Any]
    kind: ir.StringAttr
    layer: ir.StringAttr

    def check(self) -> None:
        kind = string_attribute(self, "kind", KINDS, "grouped_gemm_c1")
        lhs, rhs = lhs_info(self.lhs), scaled_info(self.rhs, "grouped_gemm_c2", "rhs")
        require_pair(*copies_read(kind, lhs, rhs), kind)
        may_be_plain = kind != "wgrad"
        message = f"lhs of {kind} must be a !scaled.tensor, got {self.lhs.type}"
        require(may_be_plain or isinstance(lhs, ScaledInfo), "grouped_gemm_c2", message)
        result = float_info(self.result, "grouped_gemm_c6", "result")
        groups = group_count(self.ends, result, "grouped_gemm_c3")
        _require_groups(lhs, rhs, groups)
        product = grouped_shape(kind, lhs.shape, rhs.shape, groups, "grouped_gemm", 4)
        require_result(result.shape, product, "grouped_gemm_c6")


def grouped_gemm(
    lhs: ir.Value,
    rhs: ir.Value,
    ends: ir.Value,
    *,
    kind: str,
    result: ir.Type,
    layer: str = "",
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> GroupedGemmOp:
    """Build a `scaled.grouped_gemm`. A quantized tensor does not say whose tensors surround it, so the result type is
    given."""
    return build(GroupedGemmOp, [lhs, rhs, ends], [result], _attributes(kind, layer), loc, ip)


def group_count(ends: ir.Value, beside: TensorInfo, constraint: str) -> int:
    """How many groups there are, by the ends of each, which stand beside a tensor."""
    require_tensor(ends, beside.group_ends(None), constraint, "ends")
    info = tensor_info(ends.type)
    count = None if info is None else info.shape[0]
    require(bool(count), constraint, f"ends must be of a known number of groups, at least one, got {ends.type}")
    return count or 0


def grouped_shape(kind: str, lhs: Shape, rhs: Shape, groups: int, op: str, first: int) -> Shape:
    """The shape of a grouped product; failures are named `<op>_c<first>` (ranks) and the number after it (dims)."""
    require(kind in KINDS, f"{op}_c1", f"kind must be one of {', '.join(KINDS)}, got {kind}")
    require(len(lhs) == 2, f"{op}_c{first}", f"lhs must be a matrix, got {format_shape(lhs)}")
    if kind == "wgrad":
        require(len(rhs) == 2, f"{op}_c{first}", f"rhs of wgrad must be a matrix, got {format_shape(rhs)}")
        left, right = lhs[0], rhs[0]
    else:
        is_stack = len(rhs) == 3 and sizes_agree(rhs[0], groups)
        wanted = f"a stack of {groups} matrices, one per group"
        require(is_stack, f"{op}_c{first}", f"rhs of {kind} must be {wanted}, got {format_shape(rhs)}")
        left, right = lhs[1], rhs[2] if kind == "fprop" else rhs[1]
    found = f"{format_shape((left,))} and {format_shape((right,))}"
    message = f"the dims that {kind} reduces over must agree, got {found}"
    require(sizes_agree(left, right), f"{op}_c{first + 1}", message)
    if kind == "wgrad":
        return groups, lhs[1], rhs[1]
    return lhs[0], rhs[1] if kind == "fprop" else rhs[2]


def _require_groups(lhs: ScaledInfo | TensorInfo, rhs: ScaledInfo, groups: int) -> None:
    for name, info in (("lhs", lhs), ("rhs", rhs)):
        if isinstance(info, ScaledInfo):
            message = f"{name} must be in {groups} groups, as many as there are ends, got {info.groups}"
            require(info.groups == groups, "grouped_gemm_c3", message)


def _attributes(kind: str, layer: str) -> dict[str, ir.Attribute]:
    return {"kind": ir.StringAttr.get(kind), "layer": ir.StringAttr.get(layer)}
