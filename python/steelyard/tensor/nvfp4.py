"""NVFP4: E2M1 codes, two per byte, with one E4M3 scale per 16 elements under one float32 scale."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.tensor.float8 import as_codes
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(block: str, second_level: str, rounding: str, rht: bool, four_over_six: str) -> Scheme:
    return Scheme(
        "f4E2M1FN",
        block,
        "f8E4M3FN",
        second_level=second_level,
        rounding=rounding,
        rht=rht,
        four_over_six=four_over_six,
    )


def _fp4_e2m1_vals(device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    """The values of the 16 E2M1 codes, in the order of the codes."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return torch.tensor([*positive, *(-value for value in positive)], device=device, dtype=dtype)


class NVFP4TensorStorage(SchemeStorage):
    """`_rowwise_data`, `_rowwise_scale_inv`, `_amax_rowwise`, and the same of the transpose under `columnwise`."""

    ROWWISE = CopyFields("_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise")
    COLUMNWISE = CopyFields("_columnwise_data", "_columnwise_scale_inv", "_amax_columnwise")
    ARGUMENTS = {field[1:]: field for field in (*ROWWISE, *COLUMNWISE) if field}  # noqa: RUF012

    def __init__(
        self,
        *,
        rowwise_data: torch.Tensor | None = None,
        rowwise_scale_inv: torch.Tensor | None = None,
        amax_rowwise: torch.Tensor | None = None,
        columnwise_data: torch.Tensor | None = None,
        columnwise_scale_inv: torch.Tensor | None = None,
        amax_columnwise: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        shape=None,
        quantizer: "NVFP4Quantizer | None" = None,
        with_gemm_swizzled_scales: bool = False,
    ):
        parts = {
            "rowwise_data": as_codes("rowwise_data", rowwise_data),
            "rowwise_scale_inv": as_codes("rowwise_scale_inv", rowwise_scale_inv, torch.float8_e4m3fn),
            "amax_rowwise": amax_rowwise,
            "columnwise_data": as_codes("columnwise_data", columnwise_data),
            "columnwise_scale_inv": as_codes("columnwise_scale_inv", columnwise_scale_inv, torch.float8_e4m3fn),
            "amax_columnwise": amax_columnwise,
        }
        if shape is None:
            shape = _unpacked_shape(rowwise_data, columnwise_data)
        row_scaled = amax_rowwise is not None and amax_rowwise.dim() == 1
        quantizer = quantizer or NVFP4Quantizer(row_scaled=row_scaled)
        self._initialize(shape, dtype, quantizer, parts, swizzled=with_gemm_swizzled_scales)

    def _traits(self) -> dict[str, Any]:
        return {"with_gemm_swizzled_scales": self._with_gemm_swizzled_scales}


def _unpacked_shape(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> tuple[int, ...]:
    """The shape of a tensor, from its packed codes. An odd last dim cannot be told from them and must be given."""
    if rowwise is not None:
        return (*rowwise.shape[:-1], 2 * rowwise.shape[-1])
    if columnwise is not None:
        return 2 * columnwise.shape[1], columnwise.shape[0]
    raise RecipeError("a quantized tensor needs the codes and scales of at least one copy, got none")


class NVFP4Tensor(QuantizedTensor, NVFP4TensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """E2M1 codes with two levels of scales: `NVFP4Tensor(rowwise_data=, rowwise_scale_inv=, amax_rowwise=, ...)`."""

    STORAGE = NVFP4TensorStorage


@dataclass(eq=False)
class NVFP4Quantizer(SchemeQuantizer):
    """Quantizes in blocks of 16, or in 16x16 tiles.

    The random Hadamard transform is on the columnwise copy only. Stochastic rounding draws its seed from torch's
    generator, so `torch.manual_seed` makes it repeatable.
    """

    STORAGE = NVFP4TensorStorage
    TENSOR = NVFP4Tensor

    with_rht: bool = field(default=False, kw_only=True)
    with_2d_quantization: bool = field(default=False, kw_only=True)
    stochastic_rounding: bool = field(default=False, kw_only=True)
    row_scaled: bool = field(default=False, kw_only=True)
    """The rowwise copy has one amax per row instead of one per tensor."""
    four_over_six: str | None = field(default=None, kw_only=True)
    """Each block also tries to map its amax to 4 instead of 6, and keeps the smaller error: `mae` or `mse`."""

    def __post_init__(self):
        self._check_flags()
        if self.four_over_six not in (None, "mae", "mse"):
            raise RecipeError(f"NVFP4Quantizer.four_over_six must be None, mae or mse, got {self.four_over_six!r}")
        for one, other in _EXCLUSIVE:
            if getattr(self, one) and getattr(self, other):
                raise RecipeError(f"NVFP4Quantizer.{one} and {other} exclude each other, got both; turn one off")

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(
            "16x16" if self.with_2d_quantization else "1x16",
            "row" if self.row_scaled and not columnwise else "tensor",
            "stochastic" if self.stochastic_rounding else "nearest",
            self.with_rht and columnwise,
            self.four_over_six or "none",
        )

    def _operands(self, matrix, row, col) -> dict[str, Any]:
        operands = self._reduced_amaxes(matrix, row, col)
        if self.stochastic_rounding:
            operands["rng"] = int(torch.randint(2**63 - 1, ())), 0
        return operands


_EXCLUSIVE = (
    ("row_scaled", "with_rht"),
    ("row_scaled", "with_2d_quantization"),
    ("row_scaled", "stochastic_rounding"),
    ("with_2d_quantization", "with_rht"),
    ("four_over_six", "with_rht"),
    ("four_over_six", "stochastic_rounding"),
)
