"""FP8 with a float32 scale for each row: of tokens, or of the output channels of a weight."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.tensor.elements import check_epsilon, fp8_element
from steelyard.tensor.float8 import as_codes, shape_of
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(element: str, power_of_two: bool, epsilon: float) -> Scheme:
    return Scheme(element, "row", "f32", power_of_two=power_of_two, epsilon=epsilon)


class Float8RowTensorStorage(SchemeStorage):
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
        quantizer: "Float8RowQuantizer | None" = None,
    ):
        self._check_quantizer(quantizer)
        fp8_element(fp8_dtype)
        quantizer = quantizer or Float8RowQuantizer(fp8_dtype)
        if fp8_dtype != quantizer.fp8_dtype:
            raise RecipeError(f"fp8_dtype must be the quantizer's, {quantizer.fp8_dtype}, got {fp8_dtype}")
        parts = {
            "rowwise_data": as_codes("rowwise_data", rowwise_data, fp8_dtype),
            "rowwise_scale_inv": rowwise_scale_inv,
            "columnwise_data": as_codes("columnwise_data", columnwise_data, fp8_dtype),
            "columnwise_scale_inv": columnwise_scale_inv,
        }
        self._initialize(shape_of(shape, rowwise_data, columnwise_data), dtype, quantizer, parts)

    @property
    def _fp8_dtype(self) -> torch.dtype:
        return self._quantizer.fp8_dtype

    def _traits(self) -> dict[str, Any]:
        return {"fp8_dtype": self._fp8_dtype}


class Float8RowTensor(QuantizedTensor, Float8RowTensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """FP8 codes with one scale per row: `Float8RowTensor(fp8_dtype=, rowwise_data=, rowwise_scale_inv=, ...)`."""

    STORAGE = Float8RowTensorStorage


@dataclass(eq=False)
class Float8RowQuantizer(SchemeQuantizer):
    """Quantizes with one scale per row (rowwise) and one per column (columnwise)."""

    STORAGE = Float8RowTensorStorage
    TENSOR = Float8RowTensor

    fp8_dtype: torch.dtype = torch.float8_e4m3fn
    force_pow_2_scales: bool = field(default=False, kw_only=True)
    amax_epsilon: float = field(default=0.0, kw_only=True)

    def __post_init__(self):
        self._check_flags()
        check_epsilon(self)
        fp8_element(self.fp8_dtype)

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(fp8_element(self.fp8_dtype), self.force_pow_2_scales, self.amax_epsilon)
