"""The FLOPs of an eager model, by torch's FlopCounterMode, with formulas for the ops that it is blind to.

An op that neither of the two knows and that reads a parameter is an error: it might hide products.
"""

from collections.abc import Callable
from math import prod

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

aten = torch.ops.aten


def attention(query, key, value, *_, out_shape=None, **__) -> int:
    *batch, queries, size = query
    return 2 * prod(batch) * queries * key[-2] * size + 2 * prod(batch) * queries * key[-2] * value[-1]


def attention_backward(grad, query, key, value, *_, out_shape=None, **__) -> int:
    # The gradients of scores and values, then those of queries and keys.
    *batch, queries, size = query
    return prod(batch) * queries * key[-2] * (4 * value[-1] + 4 * size)


def grouped(lhs, rhs, *_, out_shape=None, **__) -> int:
    if len(rhs) == 3:
        tokens, reduced = lhs[-2:]
        return 2 * tokens * reduced * rhs[-1] * (lhs[0] if len(lhs) == 3 else 1)
    rows, tokens = lhs[-2:]
    return 2 * rows * tokens * rhs[1]


def recurrent(x, w_ih, w_hh, *_, out_shape=None, **__) -> int:
    steps, batch, _ = x
    return steps * batch * 2 * (w_ih[0] * w_ih[1] + w_hh[0] * w_hh[1])


def recurrent_backward(x, w_ih, w_hh, *_, out_shape=None, **__) -> int:
    return 2 * recurrent(x, w_ih, w_hh)


def encoder_layer(src, size, heads, qkv, qkv_bias, out, *others, out_shape=None, **__) -> int:
    batch, tokens, _ = src
    feed_forward = [shape for shape in others if isinstance(shape, torch.Size) and len(shape) == 2][:2]
    products = 2 * batch * tokens * sum(prod(weight) for weight in (qkv, out, *feed_forward))
    return products + 2 * (2 * batch * tokens * tokens * size)


FORMULAS: dict[object, Callable] = {
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    aten._grouped_mm: grouped,
    aten.mkldnn_rnn_layer: recurrent,
    aten.mkldnn_rnn_layer_backward: recurrent_backward,
    aten._transformer_encoder_layer_fwd: encoder_layer,
}

# Ops that read parameters and multiply no matrices.
_NO_PRODUCTS = {
    *("t", "transpose", "permute", "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "select"),
    *("slice", "split", "split_with_sizes", "unbind", "detach", "alias", "clone", "_to_copy", "cat", "stack", "index"),
    *("empty_like", "zeros_like", "ones_like", "new_zeros", "new_empty_strided", "copy_"),
    *("add", "add_", "sub", "mul", "mul_", "div", "embedding", "embedding_dense_backward"),
    *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward"),
    *("_native_batch_norm_legit", "cudnn_batch_norm", "native_group_norm", "native_group_norm_backward"),
    *("_fused_rms_norm", "_fused_rms_norm_backward"),
}


class _ParameterReads(TorchDispatchMode):
    """Refuses an op that reads a parameter, or a view of one, and that nothing is known about."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self._storages = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        known = packet in flop_registry or packet in FORMULAS or packet.__name__ in _NO_PRODUCTS
        tensors = [
            value for value in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)
        ]
        if not known and any(value.untyped_storage().data_ptr() in self._storages for value in tensors):
            raise AssertionError(f"{func} reads a parameter, and whether it has matrix products is not known")
        return func(*args, **(kwargs or {}))


def count_flops(model: torch.nn.Module, run: Callable[[], object]) -> int:
    """The FLOPs of what a function does with a model."""
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    with _ParameterReads(model), counter:
        run()
    return counter.get_total_flops()
