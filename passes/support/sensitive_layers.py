"""Products that a recipe leaves in high precision unless an override asks for them: routers and narrow layers.

A router's scores are ranked, and the smallest error may send a token to another expert. A layer with few in-features,
such as a Fourier position embedding, has nothing to average its rounding errors over, and costs next to nothing.
"""

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedMatmulOp
from steelyard.dialect.matmul import MatmulOp
from steelyard.ir.torch_ops import info_of, op_name, parameter_of
from steelyard.ir.view_ops import STATIC_CAST, VIEW_LIKE

FEWEST_IN_FEATURES = 16
RANKED = "its result is ranked, like a router's: a small error could change the choice"

_RANKS = frozenset(f"torch.aten.{name}" for name in ("topk", "sort", "sort.stable", "argsort")) | {
    "jax.top_k",
    "jax.approx_top_k",
    "jax.sort",
}
# A classifier's argmax is an answer. Only one that the model goes on to read makes a choice within it.
_PICKS = frozenset(f"torch.aten.{name}" for name in ("argmax", "argmin", "max.dim", "min.dim")) | {
    "jax.argmax",
    "jax.argmin",
}
_KEEPS_SCORES = (
    VIEW_LIKE
    | {STATIC_CAST, "torch.prims.convert_element_type"}
    | {
        f"torch.aten.{name}"
        for name in (
            *("softmax.int", "_softmax", "log_softmax.int", "_log_softmax", "sigmoid", "tanh", "softplus", "relu"),
            *("exp", "log", "sqrt", "neg", "abs", "clamp", "clamp_min", "clamp_max", "masked_fill.Scalar"),
            *("masked_fill.Tensor", "where.self", "where.ScalarOther", "where.ScalarSelf"),
            *(f"{name}.{kind}" for name in ("add", "sub", "mul", "div") for kind in ("Tensor", "Scalar")),
        )
    }
    | {
        f"jax.{name}"
        for name in (
            *("exp", "exp2", "log", "logistic", "tanh", "sqrt", "neg", "abs", "max", "min", "clamp", "select_n"),
            *("add", "sub", "mul", "div", "stop_gradient", "broadcast_in_dim"),
        )
    }
)

Key = tuple[str, int | None, int | None]


class SensitiveLayers:
    """Knows which of some products are a router's or a narrow layer's, those of the backward included."""

    def __init__(self, matmuls: list[MatmulOp | GroupedMatmulOp]):
        self._ranked = {_key(op) for op in matmuls if _is_of_weight(op) and _is_ranked(op.result)}

    def reason(self, op: MatmulOp | GroupedMatmulOp) -> str | None:
        """Why a product stays in high precision; None for one like any other."""
        if not _is_of_weight(op):
            return None
        key = _key(op)
        if key in self._ranked:
            return RANKED
        _, _, in_features = key
        if in_features is not None and in_features < FEWEST_IN_FEATURES:
            return f"the layer has {in_features} in-features, fewer than {FEWEST_IN_FEATURES}"
        return None


def _is_of_weight(op: MatmulOp | GroupedMatmulOp) -> bool:
    if isinstance(op, MatmulOp) and op.batch_dims.value:
        return False
    return op.kind.value != "fprop" or any(parameter_of(operand) is not None for operand in (op.lhs, op.rhs))


def _key(op: MatmulOp | GroupedMatmulOp) -> Key:
    """The layer and its weight's shape [N, K], which the layer's three products have in common."""
    lhs, rhs = info_of(op.lhs), info_of(op.rhs)
    assert lhs is not None
    assert rhs is not None
    out_features = lhs.shape[-1] if op.kind.value == "wgrad" else rhs.shape[-2]
    return op.layer.value, out_features, rhs.shape[-1]


def _is_ranked(scores: ir.Value) -> bool:
    """Whether a value is ranked, as it is or through ops that hand on its elements."""
    seen, waiting = set[ir.Value](), [scores]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            reader = use.owner.operation
            name = op_name(reader)
            if name in _RANKS or (name in _PICKS and _is_read(reader.results[-1])):
                return True
            if name in _KEEPS_SCORES:
                waiting += reader.results
    return False


def _is_read(choice: ir.Value) -> bool:
    """Whether an op computes with a choice; returning it, or a view of it, is not reading it."""
    for use in choice.uses:
        reader = use.owner.operation
        name = op_name(reader)
        if name in VIEW_LIKE or name == STATIC_CAST:
            if any(_is_read(result) for result in reader.results):
                return True
        elif name != "func.return":
            return True
    return False
