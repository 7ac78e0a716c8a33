"""`scaled-apply-recipe`."""

from typing import Annotated

from torch_mlir import ir

from steelyard import recipes
from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.grouped import GroupedMatmulOp
from steelyard.dialect.matmul import MatmulOp, require_pair
from steelyard.errors import ConstraintError
from steelyard.formats.gemms import OPERAND_ROLES, OPERAND_USAGES
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import DECODED, DELAYED, HIGH_PRECISION
from steelyard.ir.functions import functions_of
from steelyard.ir.gradients import find_gradients, operand_roles
from steelyard.ir.stored import stored_scheme
from steelyard.ir.torch_ops import defining_op, op_name, parameter_of, view_root, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.sensitive_layers import SensitiveLayers

NO_PARAMETER = "no operand is a parameter"
BATCHED = "a batched product, such as those of attention"
PICKED = (
    "the weights of experts are copied for each token and multiplied as a batch; load the model with "
    'experts_implementation="grouped_mm"'
)
_PICKS = frozenset(f"torch.aten.{name}" for name in ("index.Tensor", "index_select", "embedding"))
_NO_OVERRIDES = recipes.Overrides()


@register_pass
def apply_recipe(
    module: ir.Operation,
    *,
    recipe: Annotated[recipes.Recipe, recipes.get],
    overrides: Annotated[recipes.Overrides, recipes.Overrides.parse] = _NO_OVERRIDES,
    without_parameters: bool = False,
    attention: bool = False,
    unmatched: str = "fail",
) -> None:
    """Decide how each GEMM is quantized, or why it is not.

    Takes `scaled.matmul` and `scaled.grouped_matmul`. Leaves on each one either the schemes of its two operands
    (`lhs_scheme`, `rhs_scheme`), that of a weight alone, or the reason why it stays in high precision
    (`scaled.high_precision`). A weight of the forward whose parameter is a quantized tensor (`scaled.stored`) has the
    scheme that it is stored in, whatever the recipe says about weights.

    `recipe` is the name of a recipe. `overrides` gives layers another recipe, or none: "lm_head=none layers.0.*=nvfp4".
    The first pattern that matches a layer's name decides, or the module's for experts, whose layers are named after
    their weights; one that matches no layer is an error unless `unmatched=allow`. Unless a pattern matches them, two
    kinds of layers stay in high precision, in the forward and in the backward: those whose result is ranked (`topk`,
    `sort`, or an `argmax` that the model goes on to read), as a router's is, and those whose weight has fewer than 16
    in-features.

    A GEMM without a parameter operand stays as it is unless `without-parameters` is set. A batched product, such as
    those of attention, stays as it is unless `attention` is set. Then its operands get the rowwise schemes of gradients
    and inputs, whichever they are.
    """
    if unmatched not in ("fail", "allow"):
        fail(module, f"unmatched must be fail or allow, got '{unmatched}'")
    functions = functions_of(module) if attention else []
    gradients = set[ir.Value]().union(*map(find_gradients, functions))
    matmuls = [op.opview for op in walk_ops(module) if isinstance(op.opview, MatmulOp | GroupedMatmulOp)]
    sensitive = SensitiveLayers(matmuls)
    # A wgrad of experts is in the layer of their weights if the forward has a product with those.
    forward = {op.layer.value for op in matmuls if isinstance(op, GroupedMatmulOp) and op.kind.value == "fprop"}
    for matmul in matmuls:
        layer = _overridden_name(matmul, overrides)
        chosen = overrides.recipe_of(layer, recipe)
        if chosen is None:
            reason = f"override '{overrides.pattern_of(layer)}' asks for high precision"
        elif overrides.pattern_of(layer) is None and (default := sensitive.reason(matmul)) is not None:
            reason = default
        elif isinstance(matmul, GroupedMatmulOp):
            is_of_weight = matmul.layer.value in forward
            reason = _annotate(matmul, chosen) if is_of_weight else NO_PARAMETER
        elif matmul.batch_dims.value:
            reason = _reason_of_picked(matmul) or (
                _annotate_batched(matmul, chosen, gradients) if attention else BATCHED
            )
        else:
            reason = _reason_against(matmul, without_parameters) or _annotate(matmul, chosen)
        if reason is not None:
            matmul.attributes[HIGH_PRECISION] = ir.StringAttr.get(reason)
    if unmatched == "allow":
        return
    # A pattern may be for another graph of the same net.
    graphs = module if module.parent is None else module.parent
    ops = [op.opview for op in walk_ops(graphs) if isinstance(op.opview, MatmulOp | GroupedMatmulOp)]
    missed = overrides.unmatched(_overridden_name(op, overrides) for op in ops)
    if missed:
        fail(module, f"override pattern '{missed[0]}' matches no layer")


def _overridden_name(op: MatmulOp | GroupedMatmulOp, overrides: recipes.Overrides) -> str:
    """The name by which overrides choose: the layer, or for experts, whose layers are parameters, their module if an
    earlier pattern matches that."""
    layer = op.layer.value
    if not isinstance(op, GroupedMatmulOp):
        return layer
    names, patterns = (layer, layer.rpartition(".")[0]), list(overrides)

    def place(name: str) -> int:
        pattern = overrides.pattern_of(name)
        return len(patterns) if pattern is None else patterns.index(pattern)

    return min(names, key=place)


def _reason_of_picked(op: MatmulOp) -> str | None:
    """The reason for a product of experts whose weights were copied for each token."""
    for operand in (op.lhs, op.rhs):
        root = defining_op(view_root(operand))
        if root is not None and op_name(root) in _PICKS and parameter_of(root.operands[0]) is not None:
            return PICKED
    return None


def _annotate_batched(op: MatmulOp, recipe: recipes.Recipe, gradients: set[ir.Value]) -> str | None:
    """Put the rowwise schemes of their roles on the operands of a batched product; returns the reason against it."""
    roles = operand_roles(op, gradients)
    if roles == ("grad_output", "grad_output"):
        return "a batched product of two gradients"
    schemes: list[Scheme] = []
    for name in roles:
        scheme, _ = recipe.schemes(recipes.Role(name, op.layer.value))
        if scheme is None:
            return f"the recipe leaves the {name} of batched products in high precision"
        if scheme.custom or scheme.source != "current":
            return "a batched product, whose operands have no quantizer or state of their own"
        schemes.append(scheme)
    return _pair(op, *schemes)


def _reason_against(op: MatmulOp, without_parameters: bool) -> str | None:
    # A product of the backward has its kind because that of the forward has a parameter.
    has_parameter = op.kind.value != "fprop" or any(parameter_of(operand) is not None for operand in (op.lhs, op.rhs))
    return None if has_parameter or without_parameters else NO_PARAMETER


def _annotate(op: MatmulOp | GroupedMatmulOp, recipe: recipes.Recipe) -> str | None:
    """Put the schemes on a matmul; returns the reason where the recipe leaves it in high precision."""
    kind = op.kind.value
    if kind != "fprop" and recipe.backward == "dequantized":
        return _annotate_decoded(op, recipe)
    lhs, rhs = _schemes_of(op, recipe)
    stored = stored_scheme(op.rhs) if kind == "fprop" else None
    if stored is not None and _pair(op, lhs, stored) is None:
        return _with_delayed(op, recipe)
    # Activations and gradients may stay as they are beside a quantized weight.
    by_weight_alone = lhs is None and rhs is not None and kind != "wgrad" and not rhs.custom
    if rhs is None or (lhs is None and not by_weight_alone):
        role = OPERAND_ROLES[kind][0 if lhs is None else 1]
        return f"the recipe leaves the {role} of {kind} in high precision"
    if rhs.custom and isinstance(op, GroupedMatmulOp):
        return "a user's own quantizer takes one matrix, and this is one for each expert"
    return _pair(op, lhs, rhs) or _with_delayed(op, recipe)


def _with_delayed(op: MatmulOp | GroupedMatmulOp, recipe: recipes.Recipe) -> None:
    if (delayed := recipe.delayed()) is not None:
        _annotate_delayed(op, delayed)


def _pair(op: MatmulOp | GroupedMatmulOp, lhs: Scheme | None, rhs: Scheme) -> str | None:
    """Put the schemes of both operands on a matmul; returns the reason if no gemm multiplies them."""
    try:
        is_batched = isinstance(op, MatmulOp) and op.batch_dims.value > 0
        require_pair(lhs, rhs, op.kind.value, batched=is_batched)
    except ConstraintError as error:
        return f"its operands do not go together: {error}"
    if lhs is not None:
        op.attributes["lhs_scheme"] = SchemeAttr.from_scheme(lhs)
    op.attributes["rhs_scheme"] = SchemeAttr.from_scheme(rhs)
    return None


def _schemes_of(op: MatmulOp | GroupedMatmulOp, recipe: recipes.Recipe) -> tuple[Scheme | None, Scheme | None]:
    """The schemes of the copies of lhs and rhs that a matmul would read."""
    kind, layer = op.kind.value, op.layer.value
    lhs, rhs = (
        recipe.schemes(recipes.Role(role, layer))[usage == "columnwise"]
        for role, usage in zip(OPERAND_ROLES[kind], OPERAND_USAGES[kind], strict=True)
    )
    return lhs, rhs


def _annotate_decoded(op: MatmulOp | GroupedMatmulOp, recipe: recipes.Recipe) -> str:
    if isinstance(op, GroupedMatmulOp):
        return "the recipe multiplies in high precision in the backward, and for experts what was not quantized"
    row, _ = recipe.schemes(recipes.Role(OPERAND_ROLES[op.kind.value][1], op.layer.value))
    # What the forward read of a parameter that is stored in low precision is what its values are.
    if row is not None and not row.custom and stored_scheme(op.rhs) is None:
        op.attributes[DECODED] = SchemeAttr.from_scheme(row)
        _with_delayed(op, recipe)
    return "the recipe multiplies what the forward quantized, decoded, in high precision (backward='dequantized')"


def _annotate_delayed(op: MatmulOp | GroupedMatmulOp, recipe: recipes.DelayedScaling) -> None:
    algorithm = recipe.amax_compute_algo if isinstance(recipe.amax_compute_algo, str) else "custom"
    integer = ir.IntegerType.get_signless(64)
    op.attributes[DELAYED] = ir.DictAttr.get(
        {
            "history": ir.IntegerAttr.get(integer, recipe.amax_history_len),
            "margin": ir.IntegerAttr.get(integer, recipe.margin),
            "algorithm": ir.StringAttr.get(algorithm),
            "reduce": ir.BoolAttr.get(recipe.reduce_amax),
        }
    )
