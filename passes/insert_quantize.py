"""`scaled-insert-quantize`."""

from torch_mlir import ir

from steelyard import recipes
from steelyard.dialect.matmul import USAGES, MatmulOp, gemm
from steelyard.dialect.quantize import quantize
from steelyard.errors import RecipeError
from steelyard.passes.registry import fail, register_pass
from steelyard.schemes import Scheme

ROLES = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("grad_output", "input")}
"""What lhs and rhs of each kind of GEMM are to a recipe."""


@register_pass
def insert_quantize(module: ir.Operation, *, recipe: str) -> None:
    """Quantize the operands of every GEMM by a recipe.

    Takes `scaled.matmul` on high-precision tensors. Leaves `scaled.gemm` on the copies that its kind reads, each made
    by a `scaled.quantize` of its own; `cse` then merges equal ones. A recipe that leaves an operand in high precision
    leaves the matmul. State is not made here: a recipe whose operand needs a delayed scale or random bits is an error.
    """
    try:
        chosen = recipes.get(recipe)
    except RecipeError as error:
        fail(module, str(error))
    matmuls: list[MatmulOp] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if isinstance(op.opview, MatmulOp):
            matmuls.append(op.opview)
        return ir.WalkResult.ADVANCE

    module.walk(collect)
    schemes = {role: dict(zip(("rowwise", "columnwise"), chosen.schemes(role), strict=True)) for role in recipes.ROLES}
    for op in matmuls:
        _quantize_operands(op, schemes)


def _quantize_operands(op: MatmulOp, schemes_by_role: dict[str, dict[str, Scheme | None]]) -> None:
    kind = op.kind.value
    schemes = [schemes_by_role[role][usage] for role, usage in zip(ROLES[kind], USAGES[kind], strict=True)]
    if None in schemes:
        return
    layer = op.layer.value
    operands = []
    with ir.InsertionPoint(op), op.location:
        for value, role, usage, scheme in zip((op.lhs, op.rhs), ROLES[kind], USAGES[kind], schemes, strict=True):
            _require_stateless(op, role, scheme)
            row, col = (scheme, None) if usage == "rowwise" else (None, scheme)
            operands.append(quantize(value, row, col, role=role).result)
        product = gemm(
            *operands,
            kind=kind,
            result=op.result.type,
            layer=layer,
            batch_dims=op.batch_dims.value,
            bias=op.bias,
        )
    op.result.replace_all_uses_with(product.result)
    op.operation.erase()


def _require_stateless(op: MatmulOp, role: str, scheme: Scheme) -> None:
    if scheme.source == "delayed":
        fail(op, f"{role} has a delayed scale, whose state this pass does not make (layer '{op.layer.value}')")
    if scheme.rounding == "stochastic":
        fail(op, f"{role} is rounded stochastically, whose state this pass does not make (layer '{op.layer.value}')")
