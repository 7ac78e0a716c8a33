"""Checks of what users pass to quantizers and quantized tensors."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import is_fake

from steelyard.errors import RecipeError, shown
from steelyard.formats.checks import is_size
from steelyard.tensor.elements import HIGH_PRECISION, PRESENTED, PRESENTED_NAMES


def check_flag(value: Any, what: str, *, or_none: bool = False) -> None:
    """Refuse what is neither True nor False, nor None where that leaves a choice as it is."""
    if not (isinstance(value, bool) or (or_none and value is None)):
        expected = "True, False or None" if or_none else "True or False"
        raise RecipeError(f"{what} must be {expected}, got {shown(value)}")


def check_dtype(dtype: Any) -> None:
    """Refuse what is no dtype to decode to."""
    if not isinstance(dtype, torch.dtype):
        raise RecipeError(f"dtype must be a torch.dtype, got {shown(dtype)}")


def check_presented(dtype: Any, out: Any = None) -> None:
    """Refuse a dtype that no quantizer gives its tensors, or that `out` already decides."""
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype) or dtype not in HIGH_PRECISION:
        found = shown(dtype)
        raise RecipeError(f"dtype must be float32, bfloat16 or float16, got {found}; dequantize(dtype=) gives others")
    if out is not None:
        raise RecipeError(f"out already presents a dtype, got dtype={dtype} beside it; pass one of them")


def check_tensor_dtype(dtype: Any) -> None:
    """Refuse a dtype that no quantized tensor can present."""
    if not isinstance(dtype, torch.dtype) or dtype not in PRESENTED:
        raise RecipeError(f"dtype must be {PRESENTED_NAMES}, got {shown(dtype)}")


def as_shape(shape: Any, what: str = "shape") -> torch.Size:
    """The sizes of a tensor, from a sequence of integers."""
    sizes = list(shape) if isinstance(shape, Sequence) and not isinstance(shape, str | bytes) else None
    if sizes is None or not all(is_size(size) for size in sizes):
        raise RecipeError(f"{what} must be a tuple of sizes, got {shown(shape)}")
    return torch.Size(sizes)


def view_shape(shape: tuple, numel: int) -> torch.Size:
    """The sizes of a view, given as one sequence or one by one; -1 stands for what is left."""
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    is_open = [isinstance(size, int) and size == -1 for size in given]
    pairs = list(zip(given, is_open, strict=True))
    known = as_shape([1 if is_left else size for size, is_left in pairs], "the shape of a view")
    if sum(is_open) == 1 and known.numel() and numel % known.numel() == 0:
        left = numel // known.numel()
        return torch.Size(left if is_left else size for size, is_left in pairs)
    if any(is_open) or math.prod(known) != numel:
        raise RecipeError(f"the shape of a view must hold {numel} elements, got {shown(tuple(given))}")
    return known


def check_strided(tensor: Any, what: str) -> None:
    """Refuse what is no tensor of rows and columns: sparse and nested ones, numpy arrays, lists."""
    if not isinstance(tensor, torch.Tensor):
        raise RecipeError(f"{what} must be a tensor, got {type(tensor).__name__}; make it one first")
    if tensor.is_nested:
        raise RecipeError(f"{what} must be one dense tensor, got a nested one; pass its tensors one by one")
    if tensor.layout is not torch.strided:
        raise RecipeError(f"{what} must be a dense tensor, got layout {tensor.layout}; call to_dense() first")


def check_with_values(source: torch.Tensor, beside: torch.Tensor, what: str) -> None:
    """Refuse a tensor without values beside one that has some. While torch traces, none has any."""
    is_stand_in = is_fake(source) and not is_fake(beside) and active_fake_mode() is None
    if is_stand_in or (source.is_meta and not beside.is_meta):
        raise RecipeError(f"{what} must have values, got a {type(source).__name__} on {source.device}")


def as_device(device: Any) -> torch.device | None:
    """A device on which tensors can be quantized: the CPU, or `meta`, which has shapes only."""
    if device is None:
        return None
    with suppress(RuntimeError, TypeError, ValueError):
        found = torch.device(device)
        if found.type in ("cpu", "meta"):
            return found
    raise RecipeError(f"device must be cpu or meta, got {shown(device)}; quantize on the CPU and move the parts")
