"""How much arithmetic an ATen op is: the FLOPs of its matrix products, and the sizes of the product if it is one.

Torch counts most ops itself (`torch.utils.flop_counter`). Those that it does not know are here.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry


class Work(NamedTuple):
    """What an op computes."""

    flops: int
    """Two for each multiplication and addition of its products."""
    sizes: tuple[int, int, int] | None
    """M, N and K of its product, which may be batched or grouped; None for an op of several."""


def work_of(op: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> Work | None:
    """The work of one call. None for an op without products, or with sizes that only running it tells."""
    name = op_name(op)
    formula = _FORMULAS.get(name) or flop_registry.get(getattr(op, "overloadpacket", op))
    if formula is None:
        return None
    try:
        shapes, named, out = tree_map(_shape, (tuple(arguments), dict(keywords), result))
        flops = int(formula(*shapes, **named, out_val=out))
    except _UnknownSizeError:
        return None
    return Work(flops, _sizes(name, shapes))


def node_work(node: torch.fx.Node) -> Work | None:
    """The work of a node with the sizes that the graph was captured with."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    values = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    arguments, keywords = values  # pyright: ignore[reportGeneralTypeIssues]
    return work_of(node.target, arguments, keywords, node.meta.get("val"))


class _UnknownSizeError(Exception):
    """A size that depends on the values of tensors."""


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(_known(size) for size in value.shape)
    return value


def _known(size: int | torch.SymInt) -> int:
    # Not by int(), which would compile the graph for this size alone.
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    if hint is None:
        raise _UnknownSizeError
    return int(hint)


def op_name(op: Any) -> str:
    """The name of an op without its overload: `aten.mm`."""
    return str(getattr(op, "overloadpacket", op))


def _linear_flops(x: Sequence[int], weight: Sequence[int], *_, **__) -> int:
    return 2 * prod(x) * weight[0]


def _matmul_flops(a: Sequence[int], b: Sequence[int], *, out_val: Sequence[int]) -> int:
    return 2 * prod(out_val) * a[-1]


def _vector_flops(matrix: Sequence[int], *_, **__) -> int:
    return 2 * prod(matrix)


def _grouped_flops(a: Sequence[int], b: Sequence[int], *_, **__) -> int:
    # Rows or columns that are grouped belong to one matrix each.
    return 2 * (a[-2] * a[-1] * b[-1] if len(b) == 2 else prod(a) * b[-1])


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_, **__) -> int:
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward_flops(
    _: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *__, **___
) -> int:
    # Two gradients for each of the two products; scores that are computed again do not count.
    return 2 * _attention_flops(query, key, value)


def _recurrent_flops(x: Sequence[int], weight: Sequence[int], recurrent: Sequence[int], *_, **__) -> int:
    steps = prod(x[:-1])
    return 2 * steps * (prod(weight) + prod(recurrent))


def _recurrent_backward_flops(x: Sequence[int], weight: Sequence[int], recurrent: Sequence[int], *_, **__) -> int:
    return 2 * _recurrent_flops(x, weight, recurrent)


def _encoder_flops(src: Sequence[int], *arguments, **_) -> int:
    weights = [arguments[i] for i in (2, 4, 13, 15)]
    tokens = prod(src[:-1])
    return 2 * tokens * sum(map(prod, weights)) + 4 * tokens * src[-2] * src[-1]


def _heads_flops(query: Sequence[int], key: Sequence[int], *arguments, **_) -> int:
    # It attends to itself: the three projections are one product.
    tokens = prod(query[:-1])
    return 2 * tokens * (prod(arguments[3]) + prod(arguments[5])) + 4 * tokens * key[-2] * query[-1]


_FORMULAS: dict[str, Callable[..., int]] = {
    "aten.linear": _linear_flops,
    "aten.matmul": _matmul_flops,
    "aten.mv": _vector_flops,
    "aten.addmv": lambda _, matrix, *rest, **keywords: _vector_flops(matrix),
    "aten.dot": _vector_flops,
    "aten._grouped_mm": _grouped_flops,
    "steelyard.grouped_mm": _grouped_flops,
    "transformers.grouped_mm_fallback": _grouped_flops,
    "aten.scaled_dot_product_attention": _attention_flops,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention_flops,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward_flops,
    "aten.mkldnn_rnn_layer": _recurrent_flops,
    "aten.mkldnn_rnn_layer_backward": _recurrent_backward_flops,
    "aten._transformer_encoder_layer_fwd": _encoder_flops,
    "aten._native_multi_head_attention": _heads_flops,
}


def _sizes(name: str, shapes: Sequence[Any]) -> tuple[int, int, int] | None:
    operands = PRODUCTS.get(name)
    if operands is None:
        return None
    left, right = (shapes[i] for i in operands)
    if name == "aten.linear":
        return prod(left[:-1]), right[0], left[-1]
    if len(left) < 2 or len(right) < 2:
        return None
    return left[-2], right[-1], left[-1]


PRODUCTS = {
    "aten.mm": (0, 1),
    "aten.addmm": (1, 2),
    "aten.bmm": (0, 1),
    "aten.baddbmm": (1, 2),
    "aten.linear": (0, 1),
    "aten.matmul": (0, 1),
    "aten._grouped_mm": (0, 1),
    "steelyard.grouped_mm": (0, 1),
    "transformers.grouped_mm_fallback": (0, 1),
}
"""The ops that are one product, batched or grouped perhaps, and which of their arguments its operands are."""
