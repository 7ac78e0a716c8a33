"""`scaled-fuse-epilogue`."""

from collections.abc import Collection

from torch_mlir import ir

from steelyard.dialect.matmul import GemmOp, gemm
from steelyard.dialect.types import scaled_info_of
from steelyard.ir.functions import functions_of
from steelyard.ir.gradients import find_gradients
from steelyard.ir.torch_ops import (
    activation_of,
    constant_number,
    defining_op,
    info_of,
    is_view,
    reshaped_as,
    walk_ops,
)
from steelyard.passes.pipeline.registry import register_pass


@register_pass
def fuse_epilogue(module: ir.Operation) -> None:
    """Let GEMMs apply what follows them: an activation, then the addition of a residual.

    Takes `scaled.gemm` whose result is read by one torch op, directly or through views. Leaves the gemm with the
    epilogue relu, gelu, gelu_tanh or silu, or with the residual that was added; the views follow it.

    If the backward also reads the input of the activation, the gemm returns it as a second result, `preactivation`. If
    the backward reads both the input and the result of the activation, it computes the result from the input again.
    Nothing is fused where something else reads the result, where the addition has a factor or another dtype, or where
    the residual would be broadcast.
    """
    for function in functions_of(module):
        gradients = find_gradients(function)
        for op in walk_ops(function):
            if activation_of(op) is not None:
                _fuse_activation(op, gradients)
        for op in walk_ops(function):
            if op.name == "torch.aten.add.Tensor":
                _fuse_residual(op)


def _fuse_activation(op: ir.Operation, gradients: set[ir.Value]) -> None:
    alone = _producer(op.operands[0])
    chain = alone or _producer(op.operands[0], gradients)
    if chain is None:
        return
    product, views = chain
    if product.epilogue.value != "none" or product.residual is not None:
        return
    if alone is not None:
        _replace(op, product, views, epilogue=activation_of(op))
    elif op.result not in gradients and not _is_read_by_backward(op.result, gradients):
        _keep_preactivation(op, product, views)


def _is_read_by_backward(value: ir.Value, gradients: set[ir.Value]) -> bool:
    """Whether an op that makes a gradient reads a value, or a view of it."""
    owners = [use.owner.operation for use in value.uses]
    return any(
        _makes(owner, gradients) or (is_view(owner) and _is_read_by_backward(owner.result, gradients))
        for owner in owners
    )


def _makes(op: ir.Operation, values: Collection[ir.Value]) -> bool:
    # Not by a set of ops: their hashes change with their operands, those of values do not.
    return any(result in values for result in op.results)


def _fuse_residual(op: ir.Operation) -> None:
    first, second, alpha = op.operands
    if constant_number(alpha) != 1:
        return
    for value, residual in ((first, second), (second, first)):
        chain = _producer(value)
        if chain is None or residual.type != op.result.type or value.type != op.result.type:
            continue
        product, views = chain
        if product.residual is None and _is_flat(product.result, views):
            with ir.InsertionPoint(op), op.location:
                reshaped = reshaped_as(residual, product.result.type)
            _replace(op, product, views, residual=reshaped)
            return


def _is_flat(product: ir.Value, views: list[ir.Operation]) -> bool:
    """Whether a residual can take the product's shape: nothing lies between, or the product is [M, N] with N known."""
    info = info_of(product)
    return not views or (info is not None and len(info.shape) == 2 and info.shape[1] is not None)


def _producer(value: ir.Value, gradients: Collection[ir.Value] = ()) -> tuple[GemmOp, list[ir.Operation]] | None:
    """The gemm that makes a value through views, and those views; None if several ops read one of them.

    Those that make `gradients` do not count.
    """
    views: list[ir.Operation] = []
    while (op := defining_op(value)) is not None and _reader_count(value, gradients) == 1:
        if isinstance(op.opview, GemmOp):
            # A user's own quantizer multiplies and adds a bias, no more.
            plain = any(scheme.custom for scheme in scaled_info_of(op.opview.rhs).schemes)
            # Nor does the kernel of batched products add anything.
            plain = plain or op.opview.batch_dims.value > 0
            return None if plain else (op.opview, views[::-1])
        if not is_view(op):
            return None
        views.append(op)
        value = op.operands[0]
    return None


def _reader_count(value: ir.Value, gradients: Collection[ir.Value]) -> int:
    return sum(1 for use in value.uses if not _makes(use.owner.operation, gradients))


def _keep_preactivation(op: ir.Operation, product: GemmOp, views: list[ir.Operation]) -> None:
    """Let a gemm apply an activation and return what it is given too, which takes the product's place."""
    with ir.InsertionPoint(product), product.location:
        fused = _gemm_like(product, epilogue=activation_of(op) or "none", residual=None, preactivation=True)
    assert fused.preactivation is not None, "asked for above"
    product.result.replace_all_uses_with(fused.preactivation)
    last = fused.result
    with ir.InsertionPoint(op):
        for view in views:
            copy = view.clone()
            copy.operands[0] = last
            last = copy.result
    op.result.replace_all_uses_with(last)
    op.erase()
    product.operation.erase()


def _replace(
    op: ir.Operation,
    product: GemmOp,
    views: list[ir.Operation],
    *,
    epilogue: str | None = None,
    residual: ir.Value | None = None,
) -> None:
    """Put a gemm with an epilogue or a residual more, and the views behind it, in the place of the op it absorbs."""
    with ir.InsertionPoint(op), product.location:
        kept = product.residual if residual is None else residual
        fused = _gemm_like(product, epilogue=epilogue or product.epilogue.value, residual=kept)
    product.result.replace_all_uses_with(fused.result)
    for view in views:
        view.move_before(op)
    last = views[-1].result if views else fused.result
    op.result.replace_all_uses_with(last)
    op.erase()
    product.operation.erase()


def _gemm_like(product: GemmOp, *, epilogue: str, residual: ir.Value | None, preactivation: bool = False) -> GemmOp:
    """The same product with another epilogue."""
    return gemm(
        product.lhs,
        product.rhs,
        result=product.result.type,
        kind=product.kind.value,
        layer=product.layer.value,
        batch_dims=product.batch_dims.value,
        bias=product.bias,
        epilogue=epilogue,
        residual=residual,
        preactivation=preactivation,
    )
