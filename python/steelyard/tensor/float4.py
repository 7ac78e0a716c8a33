"""Packed FP4 codes that a user gives, two per byte."""

import torch

from steelyard.errors import RecipeError
from steelyard.tensor.float8 import as_codes


def as_packed_codes(name: str, data: torch.Tensor | None) -> torch.Tensor | None:
    """Packed codes as bytes; torch's dtype of two codes per byte is taken, too."""
    return as_codes(name, data, torch.float4_e2m1fn_x2)


def unpacked_shape(rowwise: torch.Tensor | None, columnwise: torch.Tensor | None) -> tuple[int, ...]:
    """The shape of a tensor, from its packed codes. An odd last dim cannot be told from them and must be given."""
    if rowwise is not None and rowwise.dim():
        return (*rowwise.shape[:-1], 2 * rowwise.shape[-1])
    if columnwise is not None and columnwise.dim() == 2:
        return 2 * columnwise.shape[1], columnwise.shape[0]
    if rowwise is not None or columnwise is not None:
        raise RecipeError("packed codes must have the dims of the tensor, got none; give the tensor's shape")
    raise RecipeError("a quantized tensor needs the codes and scales of at least one copy, got none")
