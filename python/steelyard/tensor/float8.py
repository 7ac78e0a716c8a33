"""FP8 with one scale per tensor: delayed and current scaling."""

from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import Any

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import Scheme
from steelyard.tensor import kernels
from steelyard.tensor.arguments import as_device, check_strided, check_with_values
from steelyard.tensor.elements import check_epsilon, fp8_element, matrix_shape
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.scheme_storage import CopyFields, SchemeStorage


@cache
def _scheme(element: str, source: str, power_of_two: bool = False, epsilon: float = 0.0) -> Scheme:
    return Scheme(element, "tensor", "f32", source=source, power_of_two=power_of_two, epsilon=epsilon)


class Float8TensorStorage(SchemeStorage):
    """`_data` (codes of the tensor's shape), `_transpose` (codes of the transposed matrix), `_scale_inv` (0-d f32)."""

    ROWWISE = CopyFields("_data", "_scale_inv")
    COLUMNWISE = CopyFields("_transpose", "_scale_inv")
    ARGUMENTS = {"data": "_data", "data_transpose": "_transpose", "fp8_scale_inv": "_scale_inv"}  # noqa: RUF012

    def __init__(
        self,
        *,
        data: torch.Tensor | None = None,
        fp8_dtype: torch.dtype,
        fp8_scale_inv: torch.Tensor | float,
        dtype: torch.dtype = torch.float32,
        data_transpose: torch.Tensor | None = None,
        shape=None,
        quantizer: "Float8Quantizer | Float8CurrentScalingQuantizer | None" = None,
    ):
        scale_inv = one_float(fp8_scale_inv, "fp8_scale_inv")
        self._check_quantizer(quantizer)
        quantizer = quantizer or Float8CurrentScalingQuantizer(fp8_dtype)
        if fp8_element(fp8_dtype) != quantizer.row_scheme.element:
            raise RecipeError(f"fp8_dtype must be the quantizer's, {quantizer.fp8_dtype}, got {fp8_dtype}")
        codes = {"data": data, "data_transpose": data_transpose}
        parts = {name: as_codes(name, tensor, fp8_dtype) for name, tensor in codes.items()}
        shape = shape_of(shape, data, data_transpose)
        self._initialize(shape, dtype, quantizer, {**parts, "fp8_scale_inv": scale_inv})

    @property
    def _fp8_dtype(self) -> torch.dtype:
        return self._quantizer.fp8_dtype

    def _traits(self) -> dict[str, Any]:
        return {"fp8_dtype": self._fp8_dtype}


class Float8Tensor(QuantizedTensor, Float8TensorStorage):  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    """FP8 codes with one scale: `Float8Tensor(data=, fp8_dtype=, fp8_scale_inv=, dtype=)`.

    If it has no quantizer of its own, a write takes the new scale from the new values.
    """

    STORAGE = Float8TensorStorage


@dataclass(eq=False)
class Float8Quantizer(SchemeQuantizer):
    """Quantizes with a given scale, and records the amax from which the caller updates it (delayed scaling).

    The caller sets the amax to 0 when it has updated the scale.
    """

    STORAGE = Float8TensorStorage
    TENSOR = Float8Tensor

    scale: torch.Tensor
    amax: torch.Tensor
    """The largest magnitude of all that was quantized since the caller reset it."""
    fp8_dtype: torch.dtype

    def __post_init__(self):
        self._check_flags()
        fp8_element(self.fp8_dtype)
        for name in ("scale", "amax"):
            value = getattr(self, name)
            is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
            if not is_plain or value.dtype != torch.float32 or value.numel() != 1:
                raise RecipeError(f"Float8Quantizer.{name} must be a float32 tensor of one value, got {shown(value)}")

    def of_stack(self, scales: torch.Tensor) -> "Float8Quantizer":
        """The quantizer of a stack of matrices, which have a scale each: `of_matrix` is that of one of them."""
        made = self.copy()
        made.scale = scales.detach().clone()
        return made

    def of_matrix(self, index: int) -> "Float8Quantizer":
        if self.scale.dim() == 0:
            return self
        own = self.copy()
        own.scale = self.scale[index]
        return own

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(fp8_element(self.fp8_dtype), "delayed")

    def _operands(self, matrix, row, col) -> dict[str, Any]:
        if not matrix.is_meta:
            check_with_values(matrix, self.scale, "what Float8Quantizer quantizes")
        return {"scale": self.scale.reshape(())}

    def observe(self, copies) -> None:
        made = copies[0] or copies[1]
        if made is not None and made.amax is not None and not made.amax.is_meta:
            self._record(made.amax)

    def calibrate(self, tensor: torch.Tensor) -> None:
        tensor = self._source_of(tensor)
        if not tensor.is_meta:
            dense = tensor.dequantize() if isinstance(tensor, SchemeStorage) else tensor.detach()
            self._record(kernels.amax(dense.reshape(matrix_shape(dense.shape))))

    @torch.no_grad()
    def _record(self, amax: torch.Tensor) -> None:
        torch.maximum(self.amax, amax.reshape(self.amax.shape), out=self.amax)

    # Two delayed quantizers with the same numbers now may differ after the next step.
    def __eq__(self, other) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(eq=False)
class Float8CurrentScalingQuantizer(SchemeQuantizer):
    """Quantizes with a scale from the tensor's own amax."""

    STORAGE = Float8TensorStorage
    TENSOR = Float8Tensor

    fp8_dtype: torch.dtype
    device: torch.device | str | None = None
    """Where `make_empty` makes tensors. Others are quantized where they are."""
    force_pow_2_scales: bool = field(default=False, kw_only=True)
    amax_epsilon: float = field(default=0.0, kw_only=True)

    def __post_init__(self):
        self.device = as_device(self.device)
        self._check_flags()
        check_epsilon(self)
        fp8_element(self.fp8_dtype)

    def _make_scheme(self, columnwise: bool) -> Scheme:
        return _scheme(fp8_element(self.fp8_dtype), "current", self.force_pow_2_scales, self.amax_epsilon)

    def make_empty(self, shape, *, dtype: torch.dtype = torch.float32, device=None, requires_grad: bool = False):
        where = self.device if device is None else device
        return super().make_empty(shape, dtype=dtype, device=where, requires_grad=requires_grad)

    def _operands(self, matrix, row, col) -> dict[str, Any]:
        return self._reduced_amaxes(matrix, row, col)


def as_codes(name: str, data: torch.Tensor | None, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """Codes as bytes. Data of an FP8 dtype must have the expected dtype."""
    if data is None:
        return None
    check_strided(data, name)
    if data.dtype not in (torch.uint8, torch.int8, dtype):
        allowed = "uint8 or int8" if dtype is None else f"uint8, int8 or {dtype}"
        raise RecipeError(f"{name} must be {allowed}, got {data.dtype}; quantize values to make codes of them")
    return data.view(torch.uint8)


def one_float(value: Any, name: str) -> torch.Tensor:
    """The scale of a tensor, given as a number or a tensor."""
    if isinstance(value, Real):
        return torch.tensor(float(value), dtype=torch.float32)
    check_strided(value, name)
    if value.numel() != 1 or not value.is_floating_point():
        raise RecipeError(f"{name} must be one value, got {value.dtype} of shape {tuple(value.shape)}")
    return value.to(torch.float32).reshape(())


def shape_of(shape, rowwise: torch.Tensor | None, transposed: torch.Tensor | None = None):
    """The shape of a tensor: as given, or that of its codes."""
    if shape is not None:
        return shape
    if rowwise is not None:
        return rowwise.shape
    if transposed is not None:
        return transposed.shape[::-1]
    raise RecipeError("a quantized tensor needs the codes and scales of at least one copy, got none")
