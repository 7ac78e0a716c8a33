"""Attention in float64, and how far from it the CPU's kernel, which sums in float32, may be."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.reference.casts import E4M3, decode

UNIT = 2.0**-24
"""The largest relative error of rounding to float32."""
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_BLOCK_KEYS = 64
"""What was summed is multiplied by a factor no more often than after so many keys, and once more for each chunk."""
_LARGEST_CODE = 448.0


@dataclass(frozen=True)
class Attention:
    """Attention of all heads, with bounds of the errors of a kernel's results."""

    out: np.ndarray
    logsumexp: np.ndarray
    out_bound: np.ndarray
    logsumexp_bound: np.ndarray


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
) -> Attention:
    """softmax(scale query key^T + mask) value of finite tensors (batch, head, token, column).

    Key and value may have fewer heads, each for a group of the query's. A causal query i sees keys 0 to i. A query that
    sees no key, or only keys with a score of -inf, gives zeros, and 0 as its logarithm.

    The bounds follow from how the kernel sums. A score is a sum of `head size` products, each rounded, to which the
    mask is added; the largest one is subtracted. So the relative error of a weight, its exponential, is at most
    (size + 2) scale |query| |key| + |score| + |score - largest| units, and 6 more for the exponential and for each
    block of keys after it, whose maximum it is multiplied down to. Sums of n keys add n units.

    Keys and values with scales are E4M3 codes, each the code's value times the scale of its token and head. A kernel
    may round that product, or multiply scores and weights by the scales instead: a unit of each, either way.
    """
    group = query.shape[1] // max(key.shape[1], 1)
    q = doubles(query)
    pairs = ((key, key_scales), (value, value_scales))
    k, v = (np.repeat(doubles(x) if own is None else _decoded(x, own), group, axis=1) for x, own in pairs)
    scaled = 0 if key_scales is None else 1
    size, keys = query.shape[3], key.shape[2]
    factor = scale if scale is not None else 1 / math.sqrt(max(size, 1))
    scores = factor * (q @ k.swapaxes(2, 3))
    if mask is not None:
        scores = scores + doubles(mask)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    largest = scores.max(axis=3, keepdims=True, initial=-np.inf)
    base = np.where(np.isneginf(largest), 0, largest)
    exponentials = np.exp(scores - base)
    total = exponentials.sum(axis=3, keepdims=True)
    weights = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)

    magnitudes = abs(factor) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    steps = 6 * (2 + keys // _BLOCK_KEYS) + keys + 4 + scaled
    seen = weights > 0
    units = np.where(seen, (size + 2 + scaled) * magnitudes + np.abs(scores) + np.abs(scores - base) + steps, 0)
    # A little more, for products of errors.
    errors = 1.01 * UNIT * weights * units
    whole = errors.sum(axis=3, keepdims=True)
    # Weights below the normal numbers of float32 are zeros to the kernel.
    lost = keys * 2.0**-125
    span = np.abs(v) if value_scales is None else _LARGEST_CODE * np.abs(doubles(value_scales)).max(initial=0) + 0 * v
    out, spread = weights @ v, weights @ np.abs(v)
    rounding = ROUNDING[query.dtype] * np.abs(out) + SMALLEST[query.dtype]
    out_bound = errors @ np.abs(v) + whole * spread + lost * span.sum(axis=2, keepdims=True) + rounding
    logarithm = np.where(total > 0, base + np.log(np.where(total > 0, total, 1)), 0)
    logarithm_bound = whole + lost + UNIT * (np.abs(base) + np.abs(logarithm) + 4)
    return Attention(out, logarithm[..., 0], out_bound, logarithm_bound[..., 0])


def _decoded(codes: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    return decode(codes.numpy(), E4M3).astype(np.float64) * doubles(scales)


def doubles(x: torch.Tensor) -> np.ndarray:
    return x.detach().to(torch.float64).numpy()
