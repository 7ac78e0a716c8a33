"""Scaled GEMMs on CUDA: the calls of `torch.nn.functional.scaled_mm`, and the emulating path."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme

if TYPE_CHECKING:
    from steelyard.runtime.cuda.kernels import Kernels

_ELEMENTS = {
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


_EXACT = "highest"
"""torch's name for float32 products without TF32."""


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
    scales = copy.scales if scheme.family == "tensor" else kernels.swizzle(copy)
    return GemmOperand(codes, scales, copy.amax, scheme)


def multiply(
    a: GemmOperand, b: GemmOperand, *, bias: torch.Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """`a b^T (+ bias)`, natively."""
    scales_a, scaling_a, swizzle_a = _scaling(a)
    scales_b, scaling_b, swizzle_b = _scaling(b)
    element_a, element_b = (operand.codes.view(_ELEMENTS[operand.scheme.element]) for operand in (a, b))
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


def decode(kernels: "Kernels", copy: QuantizedCopy) -> torch.Tensor:
    """The values of a copy in float32, its rows along the reduction.

    Those of a copy with the Hadamard transform stay transformed, and none is left out: the rounding of what the
    transform put behind the last row is part of the product, as in a native GEMM.
    """
    return kernels.decode(copy)


def multiply_decoded(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`left @ right` of float32 matrices, or batches of them, into `out`: summed in float32 and rounded once.

    Decoded values have more bits than TF32 keeps, so that it is off in here, whatever the user chose elsewhere.
    """
    chosen = torch.get_float32_matmul_precision()
    if chosen == _EXACT:
        return _multiply_into(left, right, out)
    torch.set_float32_matmul_precision(_EXACT)
    try:
        return _multiply_into(left, right, out)
    finally:
        torch.set_float32_matmul_precision(chosen)


def _multiply_into(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype == torch.float32:
        return torch.matmul(left, right, out=out)
    return out.copy_(torch.matmul(left, right))


def _scaling(operand: GemmOperand) -> tuple[list, list, list | None]:
    """Scales as torch wants to see them, what they are, and how they lie."""
    scheme, scales = operand.scheme, operand.scales
    scaling = _SCALINGS[scheme.block]
    if scheme.family == "tensor":
        return [scales], [scaling], None
    if scheme.family == "block":
        # Both layouts are columns of A's rows, or of L4 scales, one behind the other.
        return [scales.t()], [scaling], None
    swizzled = [SwizzleType.SWIZZLE_32_4_4]
    if scheme.family == "mx":
        return [scales.view(torch.float8_e8m0fnu)], [scaling], swizzled
    assert operand.amax is not None
    largest = 6.0 * (448.0 if scheme.four_over_six == "none" else 256.0)
    second = operand.amax / largest
    levels = [scaling, ScalingType.TensorWise]
    return [scales.view(torch.float8_e4m3fn), second], levels, [*swizzled, SwizzleType.NO_SWIZZLE]
