"""The gradients of attention on the CPU, in the arithmetic of `steelyard.reference.attention_backward`."""

import math

import torch

from steelyard.errors import require
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import check_tensor
from steelyard.runtime.cpu.attention import check_attention, view_of


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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value, from what `attention` was given and made, and the gradient of its result.

    Tensors have any strides. What a causal mask hides takes no time.

    Constraints, beside those of `attention`:
    - attention_gradients: `out` and `grad_out` have the query's shape and dtype, and logsumexp is (batch, head, query)
      of float32
    """
    check_attention(query, key, value, mask)
    for name, tensor in {"grad_out": grad_out, "out": out, "logsumexp": logsumexp}.items():
        check_tensor(tensor, name)
        shape, dtype = (query.shape, query.dtype) if name != "logsumexp" else (query.shape[:3], torch.float32)
        message = f"{name} must be {dtype} of {tuple(shape)}, got {tensor.dtype} of {tuple(tensor.shape)}"
        require(tensor.shape == shape and tensor.dtype == dtype, "attention_gradients", message)
    return differentiate(grad_out, query, key, value, out, logsumexp, mask, bool(causal), scale)


def differentiate(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of arguments that need no check."""
    # Kept until the kernel has run: a tensor that is seen negated is copied.
    read = [x.resolve_neg() for x in (query, key, value, out, grad_out, logsumexp)]
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    grads = tuple(empty_gradient(x) for x in (query, key, value))
    if mask is not None:
        mask = mask.resolve_neg().expand(batch, heads, queries, keys)
    _cpu.attention_backward(
        (batch, heads, key_heads, queries, keys, size),
        *(view_of(x) for x in read[:3]),
        None if mask is None else view_of(mask),
        view_of(read[3]),
        view_of(read[4]),
        (read[5].data_ptr(), *read[5].stride()),
        *(view_of(x) for x in grads),
        (1 / math.sqrt(size) if size else 1.0) if scale is None else scale,
        causal,
        torch.get_num_threads(),
    )
    query_grad, key_grad, value_grad = grads
    return query_grad, key_grad, value_grad


def empty_gradient(x: torch.Tensor) -> torch.Tensor:
    """Memory for a gradient, laid out as torch's: what projects it back reads the heads of a token as one row."""
    return torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
