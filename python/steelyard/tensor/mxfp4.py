"""MXFP4: E2M1 codes, two per byte, with one power-of-two scale, stored in a byte, per 32 elements."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from steelyard.formats.schemes import Scheme
from steelyard.tensor.elements import check_scale_rule
from steelyard.tensor.float4 import as_packed_codes, unpacked_shape
from steelyard.tensor.float8 import as_codes
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(rule: str) -> Scheme:
    return Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", rule=rule)


class MXFP4TensorStorage(SchemeStorage):
    """`_rowwise_data`, `_rowwise_scale_inv`, and the same of the transpose under `columnwise`."""

    ROWWISE = CopyFields("_rowwise_data", "_rowwise_scale_inv")
    COLUMNWISE = CopyFields("_columnwise_data", "_columnwise_scale_inv")
    ARGUMENTS = {field[1:]: field for field in (*ROWWISE[:2], *COLUMNWISE[:2])}  # noqa: RUF012

    def __init__(
        self,
        *,
        rowwise_data: torch.Tensor | None = None,
        rowwise_scale_inv: torch.Tensor | None = None,
        columnwise_data: torch.Tensor | None = None,
        columnwise_scale_inv: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        shape=None,
        quantizer: "MXFP4Quantizer | None" = None,
        with_gemm_swizzled_scales: bool = False,
    ):
        self._check_quantizer(quantizer)
        parts = {
            "rowwise_data": as_packed_codes("rowwise_data", rowwise_data),
            "rowwise_scale_inv": as_codes("rowwise_scale_inv", rowwise_scale_inv, torch.float8_e8m0fnu),
            "columnwise_data": as_packed_codes("columnwise_data", columnwise_data),
            "columnwise_scale_inv": as_codes("columnwise_scale_inv", columnwise_scale_inv, torch.float8_e8m0fnu),
        }
        shape = unpacked_shape(rowwise_data, columnwise_data) if shape is None else shape
        self._initialize(shape, dtype, quantizer or MXFP4Quantizer(), parts, swizzled=with_gemm_swizzled_scales)

    def _traits(self) -> dict[str, Any]:
        return {"with_gemm_swizzled_scales": self._with_gemm_swizzled_scales}


class MXFP4Tensor(QuantizedTensor, MXFP4TensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """E2M1 codes with one scale byte per block: `MXFP4Tensor(rowwise_data=, rowwise_scale_inv=, ...)`."""

    STORAGE = MXFP4TensorStorage


@dataclass(eq=False)
class MXFP4Quantizer(SchemeQuantizer):
    """Quantizes in blocks of 32: of rows for the rowwise copy, of columns for the columnwise one."""

    STORAGE = MXFP4TensorStorage
    TENSOR = MXFP4Tensor

    scale_rule: str = field(default="rceil", kw_only=True)
    """How the scale is computed from a block's amax: rceil, floor, ceil or even."""

    def __post_init__(self):
        self._check_flags()
        check_scale_rule(self)

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(self.scale_rule)
