"""Attention on the CPU, in the arithmetic of `steelyard.reference.attention`."""

import math
from typing import Any

import torch

from steelyard.errors import require
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import DTYPES, check_tensor

_RANK = 4


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale query key^T + mask) value, and the logarithms of the sums of exponentials, (batch, head, query).

    Tensors are (batch, head, token, column), with any strides. Key and value may have fewer heads than the query, each
    for a group of its heads. A causal query i sees keys 0 to i. The mask is broadcast. A query that sees no key, or
    only keys with a score of -inf, gives zeros. Key and value may be E4M3 codes in bytes: their values are those times
    the scales, and are rounded to no dtype.

    Constraints:
    - attention_heads: query, key and value have 4 dims and one dtype: f32, bf16 or f16
    - attention_mask: a mask has 2 or 4 dims that broadcast to (batch, head, query, key), and f32 or the query's dtype
    - attention_sizes: batches and head sizes are equal, key and value have one shape, and the query's heads are a
      multiple of theirs
    - attention_scales: both key and value are codes, of 4 dims of uint8, with float32 scales that broadcast to (batch,
      head, token, 1), or neither is
    """
    are_codes = key_scales is not None or value_scales is not None
    check_attention(query, key, value, mask, are_codes=are_codes)
    if not are_codes:
        return attend(query, key, value, mask, bool(causal), scale)
    for name, scales in {"key_scales": key_scales, "value_scales": value_scales}.items():
        _check_scales(name, scales, (*key.shape[:3], 1))
    return attend(query, key, value, mask, bool(causal), scale, (key_scales, value_scales))


def check_attention(query: Any, key: Any, value: Any, mask: Any, *, are_codes: bool = False) -> None:
    """Raise `ConstraintError` unless the constraints of `attention` hold, but for those of scales."""
    for name, tensor in {"query": query, "key": key, "value": value}.items():
        _check_heads(name, tensor, torch.uint8 if are_codes and name != "query" else query.dtype)
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
    batch, heads, queries, size = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    fits = key.shape == value.shape == (batch, key_heads, keys, size)
    divides = heads % key_heads == 0 if key_heads else heads == 0
    message = "key and value must have one shape, with the query's batch and head size, and divide its heads"
    require(fits and divides, "attention_sizes", f"{message}, got query, key and value of {shapes}")
    if mask is not None:
        _check_mask(mask, (batch, heads, queries, keys), query.dtype)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    scales: tuple[Any, Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of arguments that need no check; with `scales` of keys and of values, those are codes."""
    # Kept until the kernel has run: a tensor that is seen negated is copied.
    query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    out = torch.empty_like(query)
    if out.stride(3) != 1 and size > 1:
        out = torch.empty(query.shape, dtype=query.dtype)
    logsumexp = torch.empty((batch, queries, heads), dtype=torch.float32)
    if mask is not None:
        mask = mask.resolve_neg().expand(batch, heads, queries, keys)
    if scales is not None:
        scales = tuple(one.resolve_neg() for one in scales)
    _cpu.attention(
        (batch, heads, key_heads, queries, keys, size),
        view_of(query),
        view_of(key),
        view_of(value),
        None if mask is None else view_of(mask),
        view_of(out),
        logsumexp.data_ptr(),
        (1 / math.sqrt(size) if size else 1.0) if scale is None else scale,
        causal,
        torch.get_num_threads(),
        *((None, None) if scales is None else (_scales_view(one, key) for one in scales)),
    )
    return out, logsumexp.transpose(1, 2)


def view_of(x: torch.Tensor) -> tuple:
    """What the kernel reads a tensor by."""
    # Codes have no dtype of theirs.
    return x.data_ptr(), DTYPES.get(x.dtype, DTYPES[torch.float32]), *x.stride()


def _scales_view(scales: torch.Tensor, codes: torch.Tensor) -> tuple:
    if scales.shape[:3] != codes.shape[:3]:
        scales = scales.expand(*codes.shape[:3], 1)
    return scales.data_ptr(), *scales.stride()[:3]


def _check_heads(name: str, tensor: Any, dtype: torch.dtype) -> None:
    check_tensor(tensor, name)
    if dtype == torch.uint8:
        message = f"{name} has scales and must have 4 dims of uint8, got {tensor.dim()} dims of {tensor.dtype}"
        require(tensor.dim() == _RANK and tensor.dtype == dtype, "attention_scales", message)
        return
    fits = tensor.dim() == _RANK and tensor.dtype in DTYPES and tensor.dtype == dtype
    message = f"{name} must have 4 dims, and float32, bfloat16 or float16 as the query has"
    require(fits, "attention_heads", f"{message}, got {tensor.dim()} dims of {tensor.dtype}")


def _check_scales(name: str, scales: Any, shape: tuple[int, ...]) -> None:
    require(scales is not None, "attention_scales", f"both key and value must have scales, got no {name}")
    check_tensor(scales, name)
    fits = scales.dtype == torch.float32 and scales.dim() in (0, _RANK)
    fits = fits and all(own in (1, size) for own, size in zip(scales.shape, shape, strict=False))
    message = f"{name} must be float32 and broadcast to {shape}, got {tuple(scales.shape)} of {scales.dtype}"
    require(fits, "attention_scales", message)


def _check_mask(mask: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check_tensor(mask, "mask")
    fits = mask.dim() in (2, _RANK) and mask.dtype in (torch.float32, dtype)
    message = f"mask must have 2 or 4 dims of float32 or {dtype}, got {mask.dim()} dims of {mask.dtype}"
    require(fits, "attention_mask", message)
    sizes = zip(mask.shape, shape[_RANK - mask.dim() :], strict=True)
    message = f"mask must broadcast to {shape}, got {tuple(mask.shape)}"
    require(all(own in (1, size) for own, size in sizes), "attention_mask", message)
