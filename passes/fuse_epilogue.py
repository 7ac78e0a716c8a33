"""`scaled-fuse-epilogue`."""

from torch_mlir import ir

from steelyard.dialect.matmul import GemmOp, gemm
from steelyard.passes.registry import register_pass
from steelyard.passes.torch_ops import (
    activation_of,
    constant_number,
    defining_op,
    info_of,
    is_view,
    reshaped_as,
    walk_ops,
)


@register_pass
def fuse_epilogue(module: ir.Operation) -> None:
    """Let GEMMs apply what follows them: an activation, then the addition of a residual.

    Takes `scaled.gemm` whose result one torch op reads, directly or through views. Leaves the gemm with the epilogue
    relu, gelu, gelu_tanh or silu, or with the residual that was added; views stay behind it. A result that anything
    else reads, an addition with another factor or another dtype, and a residual that would need broadcasting stay.
    """
    for op in walk_ops(module):
        if activation_of(op) is not None:
            _fuse_activation(op)
        elif op.name == "torch.aten.add.Tensor":
            _fuse_residual(op)


def _fuse_activation(op: ir.Operation) -> None:
    chain = _producer(op.operands[0])
    if chain is None:
        return
    product, views = chain
    if product.epilogue.value != "none" or product.residual is not None or product.accumulator is not None:
        return
    _replace(op, product, views, epilogue=activation_of(op))


def _fuse_residual(op: ir.Operation) -> None:
    first, second, alpha = op.operands
    if constant_number(alpha) != 1:
        return
    for value, residual in ((first, second), (second, first)):
        chain = _producer(value)
        if chain is None or residual.type != op.result.type or value.type != op.result.type:
            continue
        product, views = chain
        if product.residual is None and product.accumulator is None and _is_flat(product.result, views):
            with ir.InsertionPoint(op), op.location:
                reshaped = reshaped_as(residual, product.result.type)
            _replace(op, product, views, residual=reshaped)
            return


def _is_flat(product: ir.Value, views: list[ir.Operation]) -> bool:
    """Whether a residual can take the product's shape: nothing lies between, or the product is [M, N] with N known."""
    info = info_of(product)
    return not views or (info is not None and len(info.shape) == 2 and info.shape[1] is not None)


def _producer(value: ir.Value) -> tuple[GemmOp, list[ir.Operation]] | None:
    """The gemm that makes a value through views, and those views; None if anything else reads one of them."""
    views: list[ir.Operation] = []
    while (op := defining_op(value)) is not None and len(list(value.uses)) == 1:
        if isinstance(op.opview, GemmOp):
            # A user's own quantizer multiplies and adds a bias, no more.
            custom = any(scheme.custom for scheme in op.opview.lhs.type.info.schemes)
            return None if custom else (op.opview, views[::-1])
        if not is_view(op):
            return None
        views.append(op)
        value = op.operands[0]
    return None


def _replace(op: ir.Operation, product: GemmOp, views: list[ir.Operation], **epilogue) -> None:
    """Put a gemm with an epilogue, and the views behind it, in the place of the op it absorbs."""
    fields = {
        "epilogue": product.epilogue.value,
        "residual": product.residual,
        "bias": product.bias,
        "kind": product.kind.value,
        "layer": product.layer.value,
        "batch_dims": product.batch_dims.value,
        **epilogue,
    }
    with ir.InsertionPoint(op), product.location:
        fused = gemm(product.lhs, product.rhs, result=product.result.type, **fields)
    product.result.replace_all_uses_with(fused.result)
    for view in views:
        view.move_before(op)
    last = views[-1].result if views else fused.result
    op.result.replace_all_uses_with(last)
    op.erase()
    product.operation.erase()
