"""Current scaling written with torch alone: an example of a format of your own."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from steelyard.errors import RecipeError
from steelyard.formats.gemms import reads_columnwise
from steelyard.tensor.elements import fp8_element, matrix_shape
from steelyard.tensor.quantizer import Quantizer, check_kind, check_quantized
from steelyard.tensor.storage import QuantizedTensorStorage

_ROLE_DTYPES = {
    "input": torch.float8_e4m3fn,
    "weight": torch.float8_e4m3fn,
    "output": torch.float8_e5m2,
    "grad_output": torch.float8_e5m2,
}


@dataclass(eq=False)
class CurrentScalingTensorRef(QuantizedTensorStorage):
    """FP8 codes of a matrix and of its transpose, with one scale."""

    PARTS: ClassVar[tuple[str, ...]] = ("data", "data_t", "scale_inv")

    data: torch.Tensor | None
    data_t: torch.Tensor | None
    scale_inv: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        codes = self.data if self.data is not None else self._transposed(self.data_t)
        return (codes.float() * self.scale_inv).reshape(self.shape).to(dtype or self.dtype)

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self.data is not None, "columnwise": self.data_t is not None}

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        if rowwise_usage and self.data is None:
            self.data = self._transposed(self.data_t)
        if columnwise_usage and self.data_t is None:
            self.data_t = self._transposed(self.data)
        self.data = None if rowwise_usage is False else self.data
        self.data_t = None if columnwise_usage is False else self.data_t

    @staticmethod
    def _transposed(codes: torch.Tensor | None) -> torch.Tensor:
        if codes is None:
            raise RecipeError("a tensor must have one copy to make the other, got none; it was cleared")
        return codes.T.contiguous()


@dataclass(eq=False)
class CurrentScalingQuantizerRef(Quantizer):
    """FP8 with one scale per tensor, from its own amax."""

    fp8_dtype: torch.dtype = torch.float8_e4m3fn
    pow_2_scales: bool = field(default=False, kw_only=True)
    eps: float = field(default=0.0, kw_only=True)

    def __post_init__(self):
        fp8_element(self.fp8_dtype)

    def quantize_impl(self, tensor: torch.Tensor) -> CurrentScalingTensorRef:
        matrix = tensor.float().reshape(matrix_shape(tensor.shape))
        scale = self.scale(matrix)
        fp8_max = torch.finfo(self.fp8_dtype).max
        # Casts to float8 do not all saturate, so clamp first.
        codes = (matrix * scale).clamp(-fp8_max, fp8_max).to(self.fp8_dtype)
        data = codes if self.rowwise else None
        data_t = codes.T.contiguous() if self.columnwise else None
        return CurrentScalingTensorRef(data, data_t, 1 / scale, tensor.shape, tensor.dtype)

    def scale(self, matrix: torch.Tensor) -> torch.Tensor:
        """The factor that brings the largest magnitude to the largest code."""
        amax = matrix.abs().amax() if matrix.numel() else matrix.new_zeros(())
        amax = amax.clamp(min=self.eps)
        # torch computes a number over a tensor as the number times a reciprocal, which rounds twice.
        scale = amax.new_tensor(torch.finfo(self.fp8_dtype).max) / amax
        scale = torch.where(scale.isinf(), torch.finfo(torch.float32).max, scale)
        scale = torch.where((amax == 0) | ~amax.isfinite(), 1.0, scale)
        return (scale.view(torch.int32) & -0x800000).view(torch.float32) if self.pow_2_scales else scale

    def qgemm(
        self,
        a: Any,
        b: Any,
        *,
        kind: str = "fprop",
        bias: torch.Tensor | None = None,
        accumulate: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Multiply the codes, then scale the product once. Each operand is read along its reduction."""
        check_kind(kind)
        check_quantized(a, b, storage_class=CurrentScalingTensorRef)
        left, right = (_codes(each, usage) for each, usage in zip((a, b), reads_columnwise(kind), strict=True))
        product = (left.float() @ right.float().T) * (a.scale_inv * b.scale_inv)
        for addend in (bias, accumulate):
            product = product if addend is None else product + addend.float()
        return product.to(out_dtype)


def _codes(tensor: CurrentScalingTensorRef, columnwise: bool) -> torch.Tensor:
    codes = tensor.data_t if columnwise else tensor.data
    if codes is None:
        usage = "columnwise" if columnwise else "rowwise"
        raise RecipeError(f"a GEMM operand must have its {usage} codes, got {tensor.get_usages()}; call update_usage")
    return codes


def current_scaling_ref_quantizer_factory(role: str) -> CurrentScalingQuantizerRef:
    """The quantizer of a role, for `steelyard.recipes.CustomRecipe`: E4M3 forward, E5M2 backward."""
    if role not in _ROLE_DTYPES:
        raise RecipeError(f"role must be one of {', '.join(_ROLE_DTYPES)}, got {role!r}")
    return CurrentScalingQuantizerRef(_ROLE_DTYPES[role])
