"""The gradients of attention in float64, and how far from them the CPU's kernel, which sums in float32, may be."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from steelyard.reference.attention import ROUNDING, SMALLEST, UNIT, doubles


@dataclass(frozen=True)
class AttentionGradients:
    """The gradients of query, key and value, with bounds of the errors of a kernel's."""

    gradients: tuple[np.ndarray, np.ndarray, np.ndarray]
    bounds: tuple[np.ndarray, np.ndarray, np.ndarray]


def attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> AttentionGradients:
    """The gradients of finite query, key and value, from the result of attention and its logarithms as they are given.

    With weights P = exp(scores - logsumexp), dP = grad_out value^T and dS = P (dP - rowsum(grad_out out)), they are
    scale dS key, scale dS^T query and P^T grad_out; the gradients of a key head are the sums over the heads it serves.

    The bounds follow from how the kernel sums: a weight has the errors that `attention` says of it, dP and the row sum
    those of `head size` products, and each gradient those of its own products and of all that is summed in it.
    """
    batch, heads, queries, size = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    group = heads // max(key_heads, 1)
    q, g, o = (doubles(x) for x in (query, grad_out, out))
    k, v = (np.repeat(doubles(x), group, axis=1) for x in (key, value))
    factor = scale if scale is not None else 1 / math.sqrt(max(size, 1))
    scores = factor * (q @ k.swapaxes(2, 3))
    if mask is not None:
        scores = scores + doubles(mask)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    logarithms = doubles(logsumexp)[..., None]
    weights = np.exp(scores - logarithms)
    products = g @ v.swapaxes(2, 3)
    corrections = (g * o).sum(axis=3, keepdims=True)
    differences = products - corrections
    slopes = weights * differences

    magnitudes = abs(factor) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    seen = weights > 0
    units = np.where(seen, (size + 2) * magnitudes + np.abs(scores) + np.abs(scores - logarithms) + 6, 0)
    # A little more, for products of errors; weights below the normal numbers of float32 are zeros to the kernel.
    weight_errors = 1.01 * UNIT * weights * units + np.where(seen, 2.0**-125, 0)
    summed = np.abs(g) @ np.abs(v).swapaxes(2, 3) + (np.abs(g) * np.abs(o)).sum(axis=3, keepdims=True)
    slope_errors = weight_errors * np.abs(differences) + 1.01 * UNIT * weights * (
        (size + 1) * summed + 2 * np.abs(differences)
    )

    def shared(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, key_heads, group, keys, size).sum(axis=2)

    def turned(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(2, 3)

    found = (factor * (slopes @ k), shared(factor * (turned(slopes) @ q)), shared(turned(weights) @ g))
    errors = (
        abs(factor) * (slope_errors @ np.abs(k) + (keys + 3) * UNIT * (np.abs(slopes) @ np.abs(k))),
        shared(
            abs(factor)
            * (turned(slope_errors) @ np.abs(q) + (group * queries + 3) * UNIT * (turned(np.abs(slopes)) @ np.abs(q)))
        ),
        shared(turned(weight_errors) @ np.abs(g) + (group * queries + 2) * UNIT * (turned(weights) @ np.abs(g))),
    )
    rounding, smallest = ROUNDING[query.dtype], SMALLEST[query.dtype]
    bounds = [1.01 * error + rounding * np.abs(x) + smallest for error, x in zip(errors, found, strict=True)]
    return AttentionGradients(found, (bounds[0], bounds[1], bounds[2]))
