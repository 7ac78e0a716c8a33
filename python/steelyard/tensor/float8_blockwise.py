"""FP8 with a float32 scale for each 1x128 block or 128x128 tile."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.tensor.arguments import check_flag
from steelyard.tensor.elements import check_epsilon, fp8_element
from steelyard.tensor.float8 import as_codes, shape_of
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(element: str, block: str, power_of_two: bool, epsilon: float) -> Scheme:
    return Scheme(element, block, "f32", power_of_two=power_of_two, epsilon=epsilon)


class Float8BlockwiseQTensorStorage(SchemeStorage):
    """`_rowwise_data`, `_rowwise_scale_inv`, `_columnwise_data` (transposed), `_columnwise_scale_inv`."""

    ROWWISE = CopyFields("_rowwise_data", "_rowwise_scale_inv")
    COLUMNWISE = CopyFields("_columnwise_data", "_columnwise_scale_inv")
    ARGUMENTS = {field[1:]: field for field in (*ROWWISE[:2], *COLUMNWISE[:2])}  # noqa: RUF012

    def __init__(
        self,
        *,
        fp8_dtype: torch.dtype,
        rowwise_data: torch.Tensor | None = None,
        rowwise_scale_inv: torch.Tensor | None = None,
        columnwise_data: torch.Tensor | None = None,
        columnwise_scale_inv: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        shape=None,
        is_2D_scaled: bool = False,
        quantizer: "Float8BlockQuantizer | None" = None,
        with_gemm_swizzled_scales: bool = False,
    ):
        self._check_quantizer(quantizer)
        fp8_element(fp8_dtype)
        check_flag(is_2D_scaled, "is_2D_scaled")
        quantizer = quantizer or Float8BlockQuantizer(fp8_dtype, block_scaling_dim=2 if is_2D_scaled else 1)
        if (fp8_dtype, is_2D_scaled) != (quantizer.fp8_dtype, quantizer.block_scaling_dim == 2):
            raise RecipeError(f"fp8_dtype and is_2D_scaled must be those of the quantizer {quantizer}")
        parts = {
            "rowwise_data": as_codes("rowwise_data", rowwise_data, fp8_dtype),
            "rowwise_scale_inv": rowwise_scale_inv,
            "columnwise_data": as_codes("columnwise_data", columnwise_data, fp8_dtype),
            "columnwise_scale_inv": columnwise_scale_inv,
        }
        shape = shape_of(shape, rowwise_data, columnwise_data)
        self._initialize(shape, dtype, quantizer, parts, swizzled=with_gemm_swizzled_scales)

    @property
    def _fp8_dtype(self) -> torch.dtype:
        return self._quantizer.fp8_dtype

    @property
    def _is_2D_scaled(self) -> bool:  # noqa: N802
        return self._quantizer.block_scaling_dim == 2

    def _traits(self) -> dict[str, Any]:
        return {
            "fp8_dtype": self._fp8_dtype,
            "is_2D_scaled": self._is_2D_scaled,
            "with_gemm_swizzled_scales": self._with_gemm_swizzled_scales,
        }


class Float8BlockwiseQTensor(QuantizedTensor, Float8BlockwiseQTensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """FP8 codes with one scale per block.

    `Float8BlockwiseQTensor(fp8_dtype=, rowwise_data=, rowwise_scale_inv=, ...)`
    """

    STORAGE = Float8BlockwiseQTensorStorage


@dataclass(eq=False)
class Float8BlockQuantizer(SchemeQuantizer):
    """Quantizes in 1x128 blocks (`block_scaling_dim=1`) or 128x128 tiles (2)."""

    STORAGE = Float8BlockwiseQTensorStorage
    TENSOR = Float8BlockwiseQTensor

    fp8_dtype: torch.dtype
    block_scaling_dim: int = field(default=2, kw_only=True)
    force_pow_2_scales: bool = field(default=True, kw_only=True)
    amax_epsilon: float = field(default=0.0, kw_only=True)

    def __post_init__(self):
        if type(self.block_scaling_dim) is not int or self.block_scaling_dim not in (1, 2):
            found = shown(self.block_scaling_dim)
            raise RecipeError(f"Float8BlockQuantizer.block_scaling_dim must be 1 or 2, got {found}")
        self._check_flags()
        check_epsilon(self)
        fp8_element(self.fp8_dtype)

    def _make_scheme(self, columnwise: bool) -> Scheme:
        block = "128x128" if self.block_scaling_dim == 2 else "1x128"
        return _scheme(fp8_element(self.fp8_dtype), block, self.force_pow_2_scales, self.amax_epsilon)
