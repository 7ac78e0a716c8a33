"""Torch dtypes and the element formats that schemes name."""

import torch

from steelyard.errors import RecipeError, shown
from steelyard.formats.schemes import CHOICES
from steelyard.recipes import EPSILON, is_epsilon

HIGH_PRECISION = (torch.float32, torch.bfloat16, torch.float16)
"""What is quantized."""
PRESENTED = (*HIGH_PRECISION, torch.float64)
"""What a quantized tensor may present. Values pass through float32 on the way to and from float64."""
PRESENTED_NAMES = "float32, bfloat16, float16 or float64"
ELEMENT_DTYPES = {
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f4E2M1FN": torch.float4_e2m1fn_x2,
}
_SCALE_RULES = CHOICES["rule"]
_FP8 = {torch.float8_e4m3fn: "f8E4M3FN", torch.float8_e5m2: "f8E5M2"}


def fp8_element(fp8_dtype: torch.dtype) -> str:
    """The element format of an FP8 dtype."""
    if not isinstance(fp8_dtype, torch.dtype) or fp8_dtype not in _FP8:
        raise RecipeError(f"fp8_dtype must be torch.float8_e4m3fn or torch.float8_e5m2, got {shown(fp8_dtype)}")
    return _FP8[fp8_dtype]


def check_epsilon(quantizer) -> None:
    """Refuse a lower bound of amaxes that float32 cannot hold."""
    if not is_epsilon(quantizer.amax_epsilon):
        name = f"{type(quantizer).__name__}.amax_epsilon"
        raise RecipeError(f"{name} must be {EPSILON}, got {shown(quantizer.amax_epsilon)}")


def check_scale_rule(quantizer) -> None:
    """Refuse a rule for power-of-two scales that does not exist."""
    if not isinstance(quantizer.scale_rule, str) or quantizer.scale_rule not in _SCALE_RULES:
        name = f"{type(quantizer).__name__}.scale_rule"
        raise RecipeError(f"{name} must be one of {', '.join(_SCALE_RULES)}, got {shown(quantizer.scale_rule)}")


def matrix_shape(shape) -> tuple[int, int]:
    """The (M, N) matrix that a shape is quantized as: leading dims flattened, a vector is one row, a scalar 1x1."""
    *leading, columns = shape or (1,)
    rows = 1
    for size in leading:
        rows *= size
    return rows, columns
