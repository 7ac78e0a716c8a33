"""`steelyard::grouped_mm`: the products of experts as one op of any dtype, with gradients that can be captured.

`aten._grouped_mm` is captured in bf16 only. For every other dtype, transformers has an op of its own, whose backward
reads the groups while it is captured, when nobody knows them yet. And where all experts have as many rows, as in
Llama 4, models multiply a batch of those by a parameter. `capture_experts` puts this op in the place of both.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch

NAME = "steelyard::grouped_mm"
_FALLBACK = "transformers.grouped_mm_fallback"
_BATCHED = (torch.bmm, torch.matmul, operator.matmul, "bmm", "matmul")
_TRANSPOSES = ("transpose", "permute", "mT", "swapaxes")


def capture_experts(graph: torch.fx.Graph, inputs: Sequence[Any]) -> None:
    """Multiply by our op wherever a graph of calls, before its gradients are captured, has that of transformers, or
    a batch times a parameter of three dims."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    stacks = {
        node: value.shape
        for node, value in zip(placeholders, inputs, strict=True)
        if isinstance(value, torch.nn.Parameter) and value.dim() == 3 and value.shape[0] > 1
    }
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target).startswith(_FALLBACK):
            node.target = torch.ops.steelyard.grouped_mm.default
            node.args = (*node.args, *node.kwargs.values())
            node.kwargs = {}
        elif stacks and _is_batch_of_experts(node, stacks):
            _multiply_groups(graph, node)


def _is_batch_of_experts(node: torch.fx.Node, stacks: dict[torch.fx.Node, torch.Size]) -> bool:
    """Whether a node multiplies a batch, one matrix per expert, by a parameter or its transpose."""
    if node.op not in ("call_function", "call_method") or node.target not in _BATCHED or len(node.args) != 2:
        return False
    left, right = node.args
    while isinstance(right, torch.fx.Node) and right not in stacks and _is_transpose(right):
        right = right.args[0]
    if right not in stacks:
        return False
    shape = _shape_of(left)
    # A size that is known only at run time is not compared: torch would compile again for others.
    return shape is not None and len(shape) == 3 and type(shape[0]) is int and shape[0] == stacks[right][0]


def _is_transpose(node: torch.fx.Node) -> bool:
    if node.target is getattr:
        return node.args[1] in _TRANSPOSES
    return getattr(node.target, "__name__", node.target) in _TRANSPOSES


def _shape_of(node: Any) -> torch.Size | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value.shape if isinstance(value, torch.Tensor) else None


def _multiply_groups(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """The same product as one of groups of rows, all of which are as long."""
    left, right = node.args
    with graph.inserting_before(node):
        made = graph.call_function(_batch_as_groups, (left, right))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _batch_as_groups(x: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
    experts, rows, columns = x.shape
    ends = torch.arange(1, experts + 1, dtype=torch.int32, device=x.device) * rows
    product = torch.ops.steelyard.grouped_mm(x.reshape(experts * rows, columns), stack, ends)
    return product.view(experts, rows, stack.shape[2])


@torch.library.custom_op(NAME, mutates_args=(), schema="(Tensor x, Tensor y, Tensor ends) -> Tensor")
def grouped_mm(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each group of rows of x [S, K] times its matrix of y [E, K, N], or of columns of x [M, S] times
    its rows of y [S, N].

    Group e ends where `ends[e]` says. Rows of no group, and products of no rows, are zero.
    """
    out = x.new_zeros(_shape(x, y, ends))
    start = 0
    for group, end in enumerate(ends.tolist()):
        if start == end:
            continue
        if y.dim() == 3:
            torch.mm(x[start:end], y[group], out=out[start:end])
        else:
            torch.mm(x[:, start:end], y[start:end], out=out[group])
        start = end
    return out


def _shape(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> tuple[int, ...]:
    return (x.shape[0], y.shape[2]) if y.dim() == 3 else (ends.shape[0], x.shape[0], y.shape[1])


@grouped_mm.register_fake
def _(x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(_shape(x, y, ends))


def _keep(ctx, inputs: tuple, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, ends = ctx.saved_tensors
    if weight.dim() != 3:
        raise NotImplementedError("only products of rows and experts have gradients, got one that reduces over rows")
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.steelyard.grouped_mm(dy, weight.transpose(-2, -1), ends)
    if ctx.needs_input_grad[1]:
        # As dy^T x, which is how weights [E, N, K] lie in memory.
        dw = torch.ops.steelyard.grouped_mm(dy.transpose(-2, -1), x, ends).transpose(-2, -1)
    return dx, dw, None


grouped_mm.register_autograd(_backward, setup_context=_keep)
