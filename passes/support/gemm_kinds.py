"""Which of the three GEMMs of a linear layer a product is, where a function has gradients.

Products are raised as y = x w^T, whatever they are. In the backward, dx = dy w has a gradient and a parameter, and
dw = dy^T x has a gradient and the input of a product of the same layer in the forward. Of experts, those that reduce
over rows are raised as dw = dy^T x already.
"""

from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedMatmulOp, grouped_matmul
from steelyard.dialect.matmul import MatmulOp, matmul
from steelyard.ir.functions import functions_of
from steelyard.ir.gradients import find_gradients
from steelyard.ir.torch_ops import erase_unused_views, flatten_root, info_of, parameter_of, transpose_last, walk_ops


def tell_kinds(module: ir.Operation) -> None:
    """Make the products of the backward that were raised as fprop dgrad and wgrad."""
    for function in functions_of(module):
        gradients = find_gradients(function)
        if gradients:
            _tell(function, gradients)
            _tell_grouped(function, gradients)


@dataclass
class _Forward:
    """Inputs of the products of the forward with a parameter, by layer."""

    inputs: set[tuple[str, ir.Value]]

    def has_input(self, layer: str, value: ir.Value) -> bool:
        return (layer, flatten_root(value)) in self.inputs


def _tell(function: ir.Operation, gradients: set[ir.Value]) -> None:
    products = [op.opview for op in walk_ops(function) if isinstance(op.opview, MatmulOp)]
    products = [product for product in products if product.batch_dims.value == 0]
    # Found before anything is replaced: the product that makes a gradient may be.
    sides = [(product, product.lhs in gradients, product.rhs in gradients) for product in products]
    forward = _Forward(
        {
            (product.layer.value, flatten_root(product.lhs))
            for product, *is_gradient in sides
            if not any(is_gradient) and parameter_of(product.rhs) is not None
        }
    )
    for product, left, right in sides:
        if left == right or product.kind.value != "fprop":
            continue
        with ir.InsertionPoint(product), product.location:
            result = (_as_dgrad(product) if left else None) or _as_wgrad(product, left, forward)
        if result is None:
            continue
        operands = [product.lhs, product.rhs]
        product.result.replace_all_uses_with(result)
        product.operation.erase()
        for operand in operands:
            erase_unused_views(operand)


def _as_dgrad(product: MatmulOp) -> ir.Value | None:
    """dx = dy w."""
    if parameter_of(product.rhs) is None:
        return None
    return _matmul(product, product.lhs, transpose_last(product.rhs), "dgrad")


def _as_wgrad(product: MatmulOp, left_is_gradient: bool, forward: _Forward) -> ir.Value | None:
    """dw = dy^T x, or its transpose x^T dy for a weight that is stored so."""
    if not _is_matrix(product.lhs):
        return None
    layer = product.layer.value
    left, right = transpose_last(product.lhs), transpose_last(product.rhs)
    if left_is_gradient and forward.has_input(layer, right):
        return _matmul(product, left, right, "wgrad")
    if not left_is_gradient and forward.has_input(layer, left):
        return transpose_last(_matmul(product, right, left, "wgrad"))
    return None


def _tell_grouped(function: ir.Operation, gradients: set[ir.Value]) -> None:
    """Tell the products of experts: a gradient times a weight is a dgrad, and lhs of a wgrad is the gradient.

    A wgrad in the layer of a product of the forward was told by the frontend.
    """
    products = [op.opview for op in walk_ops(function) if isinstance(op.opview, GroupedMatmulOp)]
    layers: dict[ir.Value, str] = {}
    forward: set[str] = set()
    for product in products:
        if product.kind.value == "fprop":
            layers[flatten_root(product.lhs)] = product.layer.value
            forward.add(product.layer.value)
    for product in products:
        with ir.InsertionPoint(product), product.location:
            if product.kind.value == "fprop" and product.lhs in gradients:
                result = _grouped(product, product.lhs, transpose_last(product.rhs), "dgrad", product.layer.value)
            elif product.kind.value == "wgrad" and product.layer.value not in forward:
                result = _grouped_wgrad(product, gradients, layers)
            else:
                continue
        operands = [product.lhs, product.rhs]
        product.result.replace_all_uses_with(result)
        product.operation.erase()
        for operand in operands:
            erase_unused_views(operand)


def _grouped_wgrad(product: GroupedMatmulOp, gradients: set[ir.Value], layers: dict[ir.Value, str]) -> ir.Value:
    """dw = dy^T x, in the layer that multiplies this dy or this x; its transpose for a weight that is stored so."""
    is_transposed = product.rhs in gradients and product.lhs not in gradients
    x, dy = (product.lhs, product.rhs) if is_transposed else (product.rhs, product.lhs)
    layer = layers.get(flatten_root(dy)) or layers.get(flatten_root(x)) or product.layer.value
    result = _grouped(product, dy, x, "wgrad", layer)
    return transpose_last(result) if is_transposed else result


def _grouped(product: GroupedMatmulOp, lhs: ir.Value, rhs: ir.Value, kind: str, layer: str) -> ir.Value:
    info = info_of(product.result)
    assert info is not None
    return grouped_matmul(lhs, rhs, product.ends, kind=kind, layer=layer, dtype=info.dtype).result


def _is_matrix(value: ir.Value) -> bool:
    info = info_of(value)
    return info is not None and len(info.shape) == 2


def _matmul(product: MatmulOp, lhs: ir.Value, rhs: ir.Value, kind: str) -> ir.Value:
    info = info_of(product.result)
    assert info is not None
    return matmul(lhs, rhs, kind=kind, layer=product.layer.value, dtype=info.dtype).result
