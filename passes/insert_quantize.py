"""`scaled-insert-quantize`."""

from typing import Any

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.matmul import USAGES, MatmulOp, gemm
from steelyard.dialect.quantize import quantize
from steelyard.dialect.types import tensor_info
from steelyard.passes.apply_recipe import ROLES, apply_recipe
from steelyard.passes.functions import STATE, add_argument, argument_name
from steelyard.passes.registry import fail, register_pass
from steelyard.passes.torch_ops import walk_ops
from steelyard.schemes import Scheme


@register_pass
def insert_quantize(module: ir.Operation, *, recipe: str = "") -> None:
    """Quantize the operands of the GEMMs that a recipe was applied to.

    Takes `scaled.matmul` with the schemes of its operands. Leaves `scaled.gemm` on the copies that its kind reads,
    each made by a `scaled.quantize` of its own, for `scaled-merge-quantize` to merge. A matmul without schemes stays.
    A delayed scale is state: an argument that is added to the function and named `layer.role.scale`. Random bits are
    not made here: an operand that needs some is an error. With `recipe`, that recipe is applied first, to GEMMs with
    and without parameters alike.
    """
    if recipe:
        apply_recipe(module, recipe=recipe, without_parameters=True)
    for op in walk_ops(module):
        if isinstance(op.opview, MatmulOp) and {"lhs_scheme", "rhs_scheme"} <= set(op.attributes.keys()):
            _quantize_operands(op.opview)


def _quantize_operands(op: MatmulOp) -> None:
    kind = op.kind.value
    operands = []
    with ir.InsertionPoint(op), op.location:
        for name, role, usage in zip(("lhs", "rhs"), ROLES[kind], USAGES[kind], strict=True):
            scheme = SchemeAttr(op.attributes[f"{name}_scheme"]).scheme
            _require_no_random_bits(op, role, scheme)
            row, col = (scheme, None) if usage == "rowwise" else (None, scheme)
            state = _state_of(op, role, scheme)
            operands.append(quantize(getattr(op, name), row, col, role=role, **state).result)
        product = gemm(
            *operands,
            kind=kind,
            result=op.result.type,
            layer=op.layer.value,
            batch_dims=op.batch_dims.value,
            bias=op.bias,
        )
    op.result.replace_all_uses_with(product.result)
    op.operation.erase()


def _state_of(op: MatmulOp, role: str, scheme: Scheme) -> dict[str, Any]:
    """What a quantize has that belongs to its layer: a delayed scale, or a user's own quantizer."""
    layer = op.layer.value
    if scheme.custom:
        return {"layer": layer}
    if scheme.source == "delayed":
        return {"layer": layer, "scale": _scale_argument(op, f"{layer}.{role}.scale")}
    return {}


def _scale_argument(op: MatmulOp, name: str) -> ir.Value:
    """The argument of the function that is a scale of this name, added where there is none."""
    block = op.operation.block
    found = next((a for a in block.arguments if argument_name(a, STATE) == name), None)
    if found is None:
        info = tensor_info(op.lhs.type)
        assert info is not None
        found = add_argument(block, info.with_((), "f32").type(), op.location, {STATE: ir.StringAttr.get(name)})
    return found


def _require_no_random_bits(op: MatmulOp, role: str, scheme: Scheme) -> None:
    if scheme.rounding == "stochastic":
        fail(
            op,
            f"{role} is rounded stochastically, whose random bits this pass does not make (layer '{op.layer.value}')",
        )
