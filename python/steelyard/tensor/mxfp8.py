"""MXFP8: FP8 with one power-of-two scale, stored in a byte, per 32 elements."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.tensor.elements import check_scale_rule, fp8_element
from steelyard.tensor.float8 import as_codes, shape_of
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(element: str, block: str, rule: str) -> Scheme:
    return Scheme(element, block, "f8E8M0FNU", rule=rule)


class MXFP8TensorStorage(SchemeStorage):
    """`_rowwise_data`, `_rowwise_scale_inv`, `_columnwise_data` (not transposed), `_columnwise_scale_inv`."""

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
        quantizer: "MXFP8Quantizer | None" = None,
        with_gemm_swizzled_scales: bool = False,
    ):
        self._check_quantizer(quantizer)
        fp8_element(fp8_dtype)
        quantizer = quantizer or MXFP8Quantizer(fp8_dtype)
        if fp8_dtype != quantizer.fp8_dtype:
            raise RecipeError(f"fp8_dtype must be the quantizer's, {quantizer.fp8_dtype}, got {fp8_dtype}")
        parts = {
            "rowwise_data": as_codes("rowwise_data", rowwise_data, fp8_dtype),
            "rowwise_scale_inv": as_codes("rowwise_scale_inv", rowwise_scale_inv, torch.float8_e8m0fnu),
            "columnwise_data": as_codes("columnwise_data", columnwise_data, fp8_dtype),
            "columnwise_scale_inv": as_codes("columnwise_scale_inv", columnwise_scale_inv, torch.float8_e8m0fnu),
        }
        shape = shape_of(shape, columnwise_data if rowwise_data is None else rowwise_data)
        self._initialize(shape, dtype, quantizer, parts, swizzled=with_gemm_swizzled_scales)

    @property
    def _fp8_dtype(self) -> torch.dtype:
        return self._quantizer.fp8_dtype

    def _traits(self) -> dict[str, Any]:
        return {"fp8_dtype": self._fp8_dtype, "with_gemm_swizzled_scales": self._with_gemm_swizzled_scales}


class MXFP8Tensor(QuantizedTensor, MXFP8TensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """FP8 codes with one scale byte per block: `MXFP8Tensor(fp8_dtype=, rowwise_data=, rowwise_scale_inv=, ...)`."""

    STORAGE = MXFP8TensorStorage


@dataclass(eq=False)
class MXFP8Quantizer(SchemeQuantizer):
    """Quantizes in blocks of 1x32 (rowwise) and 32x1 (columnwise), or in 32x32 tiles."""

    STORAGE = MXFP8TensorStorage
    TENSOR = MXFP8Tensor

    fp8_dtype: torch.dtype = torch.float8_e4m3fn
    with_2d_quantization: bool = field(default=False, kw_only=True)
    scale_rule: str = field(default="rceil", kw_only=True)
    """How the scale is computed from a block's amax: rceil, floor, ceil or even."""

    def __post_init__(self):
        self._check_flags()
        check_scale_rule(self)
        fp8_element(self.fp8_dtype)

    def _make_scheme(self, columnwise: bool) -> Scheme:
        block = "32x32" if self.with_2d_quantization else "32x1" if columnwise else "1x32"
        return _scheme(fp8_element(self.fp8_dtype), block, self.scale_rule)

    # The columnwise copy is not stored transposed, so 1x32 and 32x1 keep their usages in a transposed tensor.
    @property
    def row_scheme(self) -> Scheme:
        return self._make_scheme(columnwise=False)

    @property
    def col_scheme(self) -> Scheme:
        return self._make_scheme(columnwise=True)
