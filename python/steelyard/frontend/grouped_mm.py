"""`steelyard::grouped_mm`: the products of experts as one op of any dtype, with gradients that can be captured.

`aten._grouped_mm` is captured in bf16 only. For every other dtype, transformers has an op of its own, whose backward
reads the groups while it is captured, when nobody knows them yet. `capture_experts` puts this op in its place.
"""

import torch

NAME = "steelyard::grouped_mm"
_FALLBACK = "transformers.grouped_mm_fallback"


def capture_experts(graph: torch.fx.Graph) -> None:
    """Multiply by our op wherever a graph of calls, before its gradients are captured, has that of transformers."""
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target).startswith(_FALLBACK):
            node.target = torch.ops.steelyard.grouped_mm.default
            node.args = (*node.args, *node.kwargs.values())
            node.kwargs = {}


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
