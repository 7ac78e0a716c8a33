"""How a CUDA target runs a GEMM: by which path, padded to what, and what of its epilogue it leaves to another kernel.

Read from the op and its operands alone, so that `scaled-legalize` and `explain()` say the same.
"""

from dataclasses import dataclass, replace

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.layout import flat_shape
from steelyard.dialect.matmul import GemmOp, copies_read, lhs_info
from steelyard.dialect.produce import ProduceQuantizeOp
from steelyard.dialect.quantize import NarrowOp, QuantizeOp, TransposeOp
from steelyard.dialect.types import Shape, TensorType, scaled_info_of, tensor_info
from steelyard.formats.gemms import OPERAND_USAGES, gemm_sizes
from steelyard.ir.torch_ops import defining_op
from steelyard.targets.architectures import Target
from steelyard.targets.gemm_paths import (
    CUSTOM,
    EMULATED,
    NATIVE,
    emulated_dtype,
    gemm_path,
    grouped_gemm_path,
    takes_bias,
)

_BATCHED = "torch has no product of batches of quantized matrices"
_UNTOLD = "its result would be padded along a size that is known only at run time, and no tensor here tells it"


@dataclass(frozen=True)
class Form:
    """What a native GEMM reads of an operand: one copy, as a matrix padded to multiples."""

    usage: str
    multiples: tuple[int, int]
    """Of rows and columns of the matrix."""


@dataclass(frozen=True)
class GemmPlan:
    """How a target runs a GEMM."""

    path: str
    reason: str
    """Why it is not native."""
    sizes: Shape
    """Rows of lhs, rows of rhs, and the reduction."""
    multiples: tuple[int, int, int]
    """What those are padded to."""
    leaves_epilogue: bool
    """The GEMM stores its product in f32, and another kernel does the rest."""
    decoded: str
    """The dtype that an emulated GEMM decodes its operands to."""

    @property
    def padded(self) -> tuple[bool, bool, bool]:
        """Which of the sizes are padded, or may be at run time."""
        rows, columns, reduction = (
            by > 1 and (size is None or size % by != 0) for size, by in zip(self.sizes, self.multiples, strict=True)
        )
        return rows, columns, reduction

    def forms(self, kind: str) -> tuple[Form, Form]:
        """What a native GEMM reads of lhs and of rhs."""
        *rows, reduction = self.multiples
        lhs, rhs = (
            Form(usage, (own, reduction) if usage == "rowwise" else (reduction, own))
            for usage, own in zip(OPERAND_USAGES[kind], rows, strict=True)
        )
        return lhs, rhs


def plan_gemm(op: GemmOp, target: Target) -> GemmPlan:
    """How a target runs this GEMM."""
    kind = op.kind.value
    lhs = lhs_info(op.lhs)
    left, right = copies_read(kind, lhs, scaled_info_of(op.rhs))
    found = gemm_path(kind, left, right, target)
    decoded = emulated_dtype(lhs.dtype if left is None else left, right, batched=bool(op.batch_dims.value))
    plan = GemmPlan(found.path, found.reason, _sizes(op), found.multiples, False, decoded)
    if plan.path == NATIVE:
        reason = _BATCHED if op.batch_dims.value else "" if _knows_sizes(op, plan) else _UNTOLD
        plan = replace(plan, reason=reason, path=EMULATED if reason else NATIVE)
    if plan.path == EMULATED:
        plan = replace(plan, multiples=(1, 1, 1))
    return replace(plan, leaves_epilogue=_leaves_epilogue(op, plan))


def plan_grouped_gemm(op: GroupedGemmOp, target: Target) -> GemmPlan:
    """How a target runs these products of experts: none of them is padded, and none has an epilogue."""
    kind, lhs, rhs = op.kind.value, lhs_info(op.lhs), scaled_info_of(op.rhs)
    left, right = copies_read(kind, lhs, rhs)
    result = tensor_info(op.result.type)
    assert result is not None
    widths = lhs.shape[-1], rhs.shape[-1], result.shape[-1]
    found = grouped_gemm_path(kind, left, right, target, result=result.dtype, widths=widths, groups=rhs.groups)
    decoded = emulated_dtype(lhs.dtype if left is None else left, right)
    sizes = gemm_sizes(kind, flat_shape(lhs.shape), flat_shape(rhs.shape if kind == "wgrad" else rhs.shape[1:]))
    reason = "" if found.path == NATIVE else found.reason
    return GemmPlan(found.path, reason, sizes, found.multiples, False, decoded)


def _sizes(op: GemmOp) -> Shape:
    """M, N and K, beyond batch dims."""
    infos = lhs_info(op.lhs), scaled_info_of(op.rhs)
    lhs, rhs = (flat_shape(info.shape[op.batch_dims.value :]) for info in infos)
    return gemm_sizes(op.kind.value, lhs, rhs)


def size_source(value: ir.Value) -> ir.Value | None:
    """A plain tensor with the sizes of a quantized one; None where no op here makes it."""
    while isinstance(value.type, TensorType):
        op = defining_op(value)
        if op is None or not isinstance(op.opview, QuantizeOp | ProduceQuantizeOp | NarrowOp | TransposeOp):
            return None
        value = op.operands[0]
    return value


def _leaves_epilogue(op: GemmOp, plan: GemmPlan) -> bool:
    if plan.path == CUSTOM:
        return False
    if op.epilogue.value != "none" or op.residual is not None:
        return True
    if op.bias is None:
        return False
    result, bias = tensor_info(op.result.type), tensor_info(op.bias.type)
    assert result is not None
    assert bias is not None
    # A result with padded columns would need a padded bias, and takes another kernel anyway.
    return plan.padded[1] or not takes_bias(plan.path, result.dtype, bias.dtype)


def _knows_sizes(op: GemmOp, plan: GemmPlan) -> bool:
    """Whether the result of a padded GEMM can be given its own shape again."""
    padded = [is_padded and size is None for size, is_padded in zip(plan.sizes, plan.padded, strict=True)]
    info = tensor_info(op.result.type)
    assert info is not None
    several = info.shape.count(None) > 1 and len(info.shape) > 2
    if padded[0] and len(lhs_info(op.lhs).shape) > 2:
        return False
    needed = [value for value, needs in zip((op.lhs, op.rhs), (padded[0] or several, padded[1]), strict=True) if needs]
    return all(size_source(value) is not None for value in needed)
