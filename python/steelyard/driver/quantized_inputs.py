"""Quantized parameters as inputs of a graph.

AOTAutograd would take such a tensor apart and decode it in the graph. A program reads its codes instead: the graph is
traced with a plain tensor, and the program is called with the quantized one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import TracingContext

from steelyard.errors import UnsupportedModelError
from steelyard.ir.stored import StoredSchemes
from steelyard.tensor.quantized_tensor import QuantizedTensor


def as_plain(inputs: Sequence[Any]) -> list[Any]:
    """Example inputs, with a tensor without memory instead of each quantized parameter that has no gradient."""
    return [_plain(value) if _has_no_gradient(value) else value for value in inputs]


def stored_schemes(inputs: Sequence[Any]) -> tuple[StoredSchemes, ...]:
    """How each input that is a quantized parameter holds its rows, and those of its transpose."""
    return tuple(_schemes(value) if _has_no_gradient(value) else (None, None) for value in inputs)


def _schemes(tensor: QuantizedTensor) -> StoredSchemes:
    return tensor.weight_scheme(is_transposed=False), tensor.weight_scheme(is_transposed=True)


def check_frozen(parameters: Sequence[str | None], inputs: Sequence[Any]) -> None:
    """Refuse a quantized parameter that requires a gradient."""
    for name, value in zip(parameters, inputs, strict=True):
        if name is not None and isinstance(value, QuantizedTensor) and not _has_no_gradient(value):
            raise UnsupportedModelError(
                f"{name} is a {type(value).__name__}, and a net trains parameters in high precision only; freeze it by "
                "requires_grad_(False), or replace it by nn.Parameter(parameter.dequantize())"
            )


def _has_no_gradient(value: Any) -> bool:
    if not isinstance(value, QuantizedTensor) or not isinstance(value, torch.nn.Parameter):
        return False
    return not (value.requires_grad and torch.is_grad_enabled())


def _plain(tensor: QuantizedTensor) -> torch.Tensor:
    context = TracingContext.try_get()
    assert context is not None
    assert context.fake_mode is not None
    with context.fake_mode:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
