"""Current scaling written with torch alone: an example of a format of your own."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.gemms import reads_columnwise
from steelyard.tensor.arguments import check_dtype, check_flag
from steelyard.tensor.elements import fp8_element, matrix_shape
from steelyard.tensor.quantizer import Quantizer, add, check_kind, check_quantized, is_high_precision
from steelyard.tensor.storage import QuantizedTensorStorage, size_of

_ROLE_DTYPES = {
    "input": torch.float8_e4m3fn,
    "weight": torch.float8_e4m3fn,
    "output": torch.float8_e5m2,
    "grad_output": torch.float8_e5m2,
}


@dataclass(eq=False)
class CurrentScalingTensorRef(QuantizedTensorStorage):
    """FP8 codes of a matrix and of its transpose, each with its scale: what a code is multiplied with."""

    PARTS: ClassVar[tuple[str, ...]] = ("data", "scale", "data_t", "scale_t")

    data: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    data_t: torch.Tensor | None = None
    scale_t: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    quant_dtype: torch.dtype | None = None
    original_shape: tuple[int, ...] | None = None
    """The shape of the tensor that was quantized; by default that of the matrix."""
    _quantizer: Quantizer | None = None

    def __post_init__(self):
        codes, scale = self._copy()
        if codes is None or scale is None:
            raise RecipeError("a CurrentScalingTensorRef needs data and scale, or data_t and scale_t, got neither")
        self.device = self.device or codes.device
        self.quant_dtype = self.quant_dtype or codes.dtype
        if self.original_shape is None:
            self.original_shape = codes.shape if self.data is not None else codes.shape[::-1]

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.original_shape or ())

    def size(self, dim: int | None = None):
        return size_of(self.shape, dim)

    @property
    def scale_inv(self) -> torch.Tensor | None:
        """Another name of `scale`."""
        return self._copy()[1]

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        codes, scale = self._copy()
        if codes is None or scale is None:
            raise RecipeError("a tensor must have a copy to decode, got none; it was cleared")
        if dtype is not None:
            check_dtype(dtype)
        matrix = codes if self.data is not None else codes.T
        return (matrix.float() * scale).reshape(self.shape).to(dtype or self.dtype)

    def _copy(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The codes that exist, rowwise ones first, and their scale."""
        return (self.data, self.scale) if self.data is not None else (self.data_t, self.scale_t)

    def get_usages(self) -> dict[str, bool]:
        return {"rowwise": self.data is not None, "columnwise": self.data_t is not None}

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        check_flag(rowwise_usage, "rowwise_usage", or_none=True)
        check_flag(columnwise_usage, "columnwise_usage", or_none=True)
        if rowwise_usage and self.data is None:
            self.data, self.scale = self._transposed(self.data_t), self.scale_t
        if columnwise_usage and self.data_t is None:
            self.data_t, self.scale_t = self._transposed(self.data), self.scale
        if rowwise_usage is False:
            self.data = self.scale = None
        if columnwise_usage is False:
            self.data_t = self.scale_t = None

    @staticmethod
    def _transposed(codes: torch.Tensor | None) -> torch.Tensor:
        if codes is None:
            raise RecipeError("a tensor must have one copy to make the other, got none; it was cleared")
        return codes.T.contiguous()


@dataclass(eq=False)
class CurrentScalingQuantizerRef(Quantizer):
    """FP8 with one scale per tensor, from its own amax."""

    ALSO_REQUIRED = ""

    fp8_dtype: torch.dtype = torch.float8_e4m3fn
    pow_2_scales: bool = field(default=False, kw_only=True)
    eps: float = field(default=0.0, kw_only=True)

    def __post_init__(self):
        fp8_element(self.fp8_dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Another name of `fp8_dtype`."""
        return self.fp8_dtype

    def is_quantizable(self, tensor: torch.Tensor) -> bool:
        return is_high_precision(tensor)

    def quantize_impl(self, tensor: torch.Tensor) -> CurrentScalingTensorRef:
        matrix = tensor.float().reshape(matrix_shape(tensor.shape))
        scale = self.scale(matrix)
        fp8_max = torch.finfo(self.fp8_dtype).max
        # Casts to float8 do not all saturate, so clamp first.
        codes = (matrix * scale).clamp(-fp8_max, fp8_max).to(self.fp8_dtype)
        row = (codes, 1 / scale) if self.rowwise else (None, None)
        col = (codes.T.contiguous(), 1 / scale) if self.columnwise else (None, None)
        return CurrentScalingTensorRef(
            *row, *col, dtype=tensor.dtype, original_shape=tensor.shape, _quantizer=self.copy()
        )

    def scale(self, matrix: torch.Tensor) -> torch.Tensor:
        """The factor that brings the largest magnitude to the largest code."""
        amax = matrix.abs().amax() if matrix.numel() else matrix.new_zeros(())
        amax = amax.clamp(min=self.eps)
        # torch computes a number over a tensor as the number times a reciprocal, which rounds twice.
        scale = torch.full_like(amax, torch.finfo(self.fp8_dtype).max) / amax
        scale = scale.masked_fill(scale.isinf(), torch.finfo(torch.float32).max)
        scale = scale.masked_fill((amax == 0) | ~amax.isfinite(), 1.0)
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
        copies = [_copy(each, usage) for each, usage in zip((a, b), reads_columnwise(kind), strict=True)]
        (left, left_scale), (right, right_scale) = copies
        return add((left.float() @ right.float().T) * (left_scale * right_scale), bias, accumulate, out_dtype)


def _copy(tensor: CurrentScalingTensorRef, columnwise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = (tensor.data_t, tensor.scale_t) if columnwise else (tensor.data, tensor.scale)
    if codes is None or scale is None:
        usage = "columnwise" if columnwise else "rowwise"
        raise RecipeError(f"a GEMM operand must have its {usage} codes, got {tensor.get_usages()}; call update_usage")
    return codes, scale


def current_scaling_ref_quantizer_factory(role: str) -> CurrentScalingQuantizerRef:
    """The quantizer of a role, for `steelyard.recipes.CustomRecipe`: E4M3 forward, E5M2 backward."""
    if not isinstance(role, str) or role not in _ROLE_DTYPES:
        raise RecipeError(f"role must be one of {', '.join(_ROLE_DTYPES)}, got {shown(role)}")
    return CurrentScalingQuantizerRef(_ROLE_DTYPES[role])
