"""Scaled GEMMs on CUDA: the calls of `torch.nn.functional.scaled_mm`, and the emulating path."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

from steelyard.codegen.scale_rules import nvfp4_range
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.exact_products import exact_products
from steelyard.runtime.cuda.scale_buffer import ScaleBuffer

if TYPE_CHECKING:
    from steelyard.runtime.cuda.kernels import Kernels

ELEMENTS = {
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f4E2M1FN": torch.float4_e2m1fn_x2,
}
_SCALINGS = {
    "tensor": ScalingType.TensorWise,
    "1x128": ScalingType.BlockWise1x128,
    "128x128": ScalingType.BlockWise128x128,
    "1x32": ScalingType.BlockWise1x32,
    "32x1": ScalingType.BlockWise1x32,
    "32x32": ScalingType.BlockWise1x32,
    "1x16": ScalingType.BlockWise1x16,
    "16x16": ScalingType.BlockWise1x16,
}
_scale_buffer = ScaleBuffer()


@dataclass(frozen=True)
class GemmOperand:
    """What a GEMM reads: codes as rows along the reduction, scales in the order that GEMMs read."""

    codes: torch.Tensor
    scales: torch.Tensor
    amax: torch.Tensor | None
    scheme: Scheme


def gemm_operand(kernels: "Kernels", copy: QuantizedCopy) -> GemmOperand:
    """A copy turned and swizzled as a GEMM reads it; its sizes must be padded."""
    codes, scheme = copy.codes, copy.scheme
    if scheme.family == "mx" and copy.columnwise:
        codes = kernels.transpose_codes(codes)
    scales = kernels.swizzle(copy) if scheme.has_blocks else copy.scales
    return GemmOperand(codes, scales, copy.amax, scheme)


def multiply(
    a: GemmOperand, b: GemmOperand, *, bias: torch.Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """`a b^T (+ bias)`, natively."""
    if "row" in (a.scheme.family, b.scheme.family):
        return _multiply_rows(a, b, bias, out_dtype)
    blocks_a, blocks_b = _scaling(a), _scaling(b)
    if a.scheme.family != "nvfp4":
        return _multiply(a, b, blocks_a, blocks_b, bias, out_dtype)
    second_a, second_b = second_level(a), second_level(b)
    with _scale_buffer.turn(a.codes.device) as is_free:
        if is_free:
            levels = with_second(blocks_a, second_a), with_second(blocks_b, second_b)
            return _multiply(a, b, *levels, bias, out_dtype)
    # What the GEMM would do after its sum: in float32, rounded once.
    product = _multiply(a, b, blocks_a, blocks_b, None, torch.float32).mul_(second_a * second_b)
    return (product if bias is None else product.add_(bias)).to(out_dtype)


def _multiply_rows(a: GemmOperand, b: GemmOperand, bias: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    """A product of which at least one operand has a scale per row.

    torch's own multiplies E4M3 with such scales on both sides, and writes bf16 on every GPU. For other operands and
    results, the codes are multiplied with a scale of 1, and what a GEMM would do after its sum follows: in float32,
    rounded once.
    """
    is_plain = a.scheme.element == b.scheme.element == "f8E4M3FN" and a.scheme.family == b.scheme.family
    if is_plain and out_dtype == torch.bfloat16:
        left, right = (Scaling([scales], [ScalingType.RowWise], None) for scales in (a.scales, b.scales.t()))
        return _multiply(a, b, left, right, bias, out_dtype)
    one = Scaling([torch.ones((), device=a.codes.device)], [ScalingType.TensorWise], None)
    product = _multiply(a, b, one, one, None, torch.float32).mul_(a.scales).mul_(b.scales.t())
    return (product if bias is None else product.add_(bias)).to(out_dtype)


def _multiply(
    a: GemmOperand,
    b: GemmOperand,
    scaling_of_a: "Scaling",
    scaling_of_b: "Scaling",
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    (scales_a, scaling_a, swizzle_a), (scales_b, scaling_b, swizzle_b) = scaling_of_a, scaling_of_b
    element_a, element_b = (operand.codes.view(ELEMENTS[operand.scheme.element]) for operand in (a, b))
    return scaled_mm(
        element_a,
        element_b.t(),
        scales_a,
        scaling_a,
        scales_b,
        scaling_b,
        swizzle_a=swizzle_a,
        swizzle_b=swizzle_b,
        bias=bias,
        output_dtype=out_dtype,
    )


class OuterScale(NamedTuple):
    """What sums are multiplied by: the scale of a tensor, or one of each row, divided by a number."""

    scale: torch.Tensor
    range: int

    def factor(self) -> torch.Tensor:
        """0-d, or one value per row."""
        return self.scale.reshape(-1) / self.range if self.scale.dim() else self.scale / self.range


def multiply_decoded(
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
    left_scale: OuterScale | None = None,
    right_scale: OuterScale | None = None,
) -> torch.Tensor:
    """`left @ right` of bf16 or float32 matrices, or batches of the latter, into `out`: summed in float32, scaled, and
    rounded once.

    Values in float32 have more bits than TF32 keeps, so that it is off in here, whatever the user chose elsewhere.
    """
    if left.dtype == torch.bfloat16:
        product = _multiply_bf16(left, right)
        if left_scale is not None:
            product.mul_(left_scale.factor().reshape(-1, 1))
        if right_scale is not None:
            product.mul_(right_scale.factor())
        return out.copy_(product)
    with exact_products():
        if out.dtype == torch.float32:
            return torch.matmul(left, right, out=out)
        return out.copy_(torch.matmul(left, right))


def _multiply_bf16(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A product in float32; the CPU, where this is tested, has none of bf16."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(left.float(), right.float())


class Scaling(NamedTuple):
    """Scales as torch wants to see them, what they are, and how they lie."""

    scales: list[torch.Tensor]
    types: list[ScalingType]
    swizzles: list[SwizzleType] | None


def _scaling(operand: GemmOperand) -> Scaling:
    """The scales of an operand without those above its blocks."""
    scheme, scales = operand.scheme, operand.scales
    scaling = _SCALINGS[scheme.block]
    if scheme.family == "tensor":
        return Scaling([scales], [scaling], None)
    if scheme.family == "block":
        # Both layouts are columns of A's rows, or of L4 scales, one behind the other.
        return Scaling([scales.t()], [scaling], None)
    dtype = torch.float8_e8m0fnu if scheme.family == "mx" else torch.float8_e4m3fn
    return Scaling([scales.view(dtype)], [scaling], [SwizzleType.SWIZZLE_32_4_4])


def second_level(operand: GemmOperand) -> torch.Tensor:
    """The scale above the block scales of FP4, or that of each group."""
    assert operand.amax is not None
    if operand.scheme.source == "divisor":
        return 1 / operand.amax
    return operand.amax / nvfp4_range(operand.scheme)


def with_second(scaling: Scaling, second: torch.Tensor) -> Scaling:
    """Both levels of the scales of FP4."""
    swizzles = [*(scaling.swizzles or ()), SwizzleType.NO_SWIZZLE]
    return Scaling([*scaling.scales, second], [*scaling.types, ScalingType.TensorWise], swizzles)
