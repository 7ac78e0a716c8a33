"""`scaled-insert-quantize`."""

from torch_mlir import ir

from steelyard import recipes
from steelyard.dialect.matmul import USAGES, MatmulOp, gemm
from steelyard.dialect.quantize import quantize
from steelyard.errors import RecipeError
from steelyard.passes.registry import fail, register_pass
from steelyard.schemes import Scheme

Copies = tuple[Scheme | None, Scheme | None]
"""The schemes of a rowwise and a columnwise copy."""

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
    schemes = {role: chosen.schemes(role) for role in recipes.ROLES}
    for op in matmuls:
        _quantize_operands(op, schemes)


def _quantize_operands(op: MatmulOp, schemes: dict[str, Copies]) -> None:
    kind = op.kind.value
    copies = [_copy_read(schemes[role], usage) for role, usage in zip(ROLES[kind], USAGES[kind], strict=True)]
    if (None, None) in copies:
        return
    operands = []
    with ir.InsertionPoint(op), op.location:
        for value, role, (row, col) in zip((op.lhs, op.rhs), ROLES[kind], copies, strict=True):
            _require_stateless(op, role, row or col)
            operands.append(quantize(value, row, col, role=role).result)
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


def _copy_read(copies: Copies, usage: str) -> Copies:
    row, col = copies
    return (row, None) if usage == "rowwise" else (None, col)


def _require_stateless(op: MatmulOp, role: str, scheme: Scheme | None) -> None:
    assert scheme is not None
    if scheme.source == "delayed":
        fail(op, f"{role} has a delayed scale, whose state this pass does not make (layer '{op.layer.value}')")
    if scheme.rounding == "stochastic":
        fail(op, f"{role} is rounded stochastically, whose state this pass does not make (layer '{op.layer.value}')")
