"""`as_strided` without strides: values of the IR have none."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch_mlir.extras.fx_as_strided import rewrite_as_strided

from steelyard.frontend.nodes import unsupported

_AS_STRIDED = torch.ops.aten.as_strided.default
_SCATTER = torch.ops.aten.as_strided_scatter.default
_RESHAPE = torch.ops.aten.reshape.default


def remove_strides(graph: torch.fx.Graph) -> None:
    """Replace each `as_strided` by a reshape if it keeps all elements in order, otherwise by a gather of them."""
    for node in list(graph.nodes):
        source = _source_of_all(node)
        if source is not None:
            with graph.inserting_before(node):
                reshaped = graph.call_function(_RESHAPE, (source, _sizes(node)))
            reshaped.meta = dict(node.meta)
            node.replace_all_uses_with(reshaped)
            graph.erase_node(node)
    left = next((node for node in graph.nodes if node.target is _AS_STRIDED), None)
    if left is None:
        return
    try:
        # The indices become tensors that the graph holds.
        rewrite_as_strided(graph)
    except ValueError as error:
        raise unsupported(left, "", error) from error


def _source_of_all(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node whose elements this one has, all of them in the same order."""
    arguments: Any = node.args
    if node.target is _AS_STRIDED:
        source = arguments[0]
        value, view = source.meta["val"], node.meta["val"]
        if not _same([value.storage_offset()], [view.storage_offset()]):
            return None
        same = _has_same_strides(value, view)
        return source if same or _covers(view.shape, view.stride(), view, value) else None
    # A gradient that is written over all of a tensor.
    if node.target is _SCATTER and len(arguments) == 5 and arguments[4] == 0:
        base, source, *layout, _ = arguments
        sizes, strides = ([_value(one) for one in given] for given in layout)
        is_flat = base.meta["val"].dim() == 1
        return source if is_flat and _covers(sizes, strides, source.meta["val"], base.meta["val"]) else None
    return None


def _sizes(node: torch.fx.Node) -> Any:
    return node.args[1] if node.target is _AS_STRIDED else [-1]


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, torch.fx.Node) else number


def _has_same_strides(value: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether only strides change that no element has, those of dims of size 1, as pooling to size 1 does."""
    if not _same(value.shape, view.shape):
        return False
    seen = [dim for dim, size in enumerate(value.shape) if not _same([size], [1])]
    return _same([value.stride(dim) for dim in seen], [view.stride(dim) for dim in seen])


def _covers(sizes: Sequence, strides: Sequence, view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view of a base, with these sizes and strides, is all of its elements in order."""
    in_order = _is_in_order(sizes, strides) and _is_in_order(base.shape, base.stride())
    return in_order and _same([view.numel()], [base.numel()])


def _is_in_order(sizes: Sequence, strides: Sequence) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not _same([size], [1]) and not _same([stride], [expected]):
            return False
        expected = expected * size
    return True


def _same(left: Sequence, right: Sequence) -> bool:
    """Whether sizes are equal, without a guard on those known only at run time."""
    return len(left) == len(right) and all(statically_known_true(a == b) for a, b in zip(left, right, strict=True))
