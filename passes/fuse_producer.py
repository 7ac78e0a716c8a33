"""`scaled-fuse-producer`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch_mlir import ir

from steelyard.dialect.produce import produce_quantize
from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import scaled_info_of, tensor_info
from steelyard.ir.torch_ops import (
    activation_of,
    constant_ints,
    constant_number,
    defining_op,
    is_none,
    is_view,
    reshaped_as,
    walk_ops,
)
from steelyard.passes.pipeline.registry import register_pass


@dataclass(frozen=True)
class Produced:
    """What a quantized value is computed from."""

    producer: str
    source: ir.Value
    ops: list[ir.Operation]
    """The ops that compute it, last first; nothing else reads them."""
    other: ir.Value | None = None
    vectors: dict[str, ir.Value] = field(default_factory=dict[str, ir.Value])
    epsilon: float = 0.0


@register_pass
def fuse_producer(module: ir.Operation) -> None:
    """Quantize norms and activations as they are computed.

    Takes `scaled.quantize` of a layer norm with weight and bias, an RMS norm, a silu times another tensor, or a relu,
    gelu or silu, directly or through views that flatten the dims before the last. Leaves a `scaled.produce_quantize` of
    their inputs. Nothing is fused where something else reads the value, or where the quantize has a custom scheme,
    takes random bits, keeps its amax or is of groups.
    """
    for op in walk_ops(module):
        if isinstance(op.opview, QuantizeOp):
            _fuse(op.opview)


def _fuse(op: QuantizeOp) -> None:
    info = scaled_info_of(op.result)
    if op.rng is not None or op.new_amax is not None or info.groups:
        return
    if any(scheme.custom for scheme in info.schemes):
        return
    value, views = _through_views(op.source)
    produced = _match(value) if value is not None else None
    if produced is None or (views and (len(info.shape) != 2 or info.shape[-1] is None)):
        return
    with ir.InsertionPoint(op), op.location:
        other = None if produced.other is None else reshaped_as(produced.other, op.source.type)
        fused = produce_quantize(
            produced.producer,
            reshaped_as(produced.source, op.source.type),
            info.row,
            info.col,
            role=op.role.value,
            layer=op.layer.value,
            other=other,
            epsilon=produced.epsilon,
            scale=op.scale,
            weight=produced.vectors.get("weight"),
            bias=produced.vectors.get("bias"),
        )
    op.result.replace_all_uses_with(fused.result)
    op.operation.erase()
    for dead in [*views, *produced.ops]:
        dead.erase()


def _through_views(value: ir.Value) -> tuple[ir.Value | None, list[ir.Operation]]:
    """The value behind views that nothing else reads, and those views, last first."""
    views: list[ir.Operation] = []
    while _is_read_once(value) and (op := defining_op(value)) is not None and is_view(op):
        views.append(op)
        value = op.operands[0]
    return (value if _is_read_once(value) else None), views


def _match(value: ir.Value) -> Produced | None:
    op = defining_op(value)
    if op is None:
        return None
    matchers: dict[str, Callable[[ir.Operation], Produced | None]] = {
        "torch.aten.native_layer_norm": _match_layer_norm,
        "torch.aten.mul.Tensor": lambda mul: _match_silu_and_multiply(mul) or _match_rms_norm(mul),
    }
    if op.name in matchers:
        return matchers[op.name](op)
    activation = activation_of(op)
    return None if activation is None else Produced(activation, op.operands[0], [op])


def _match_layer_norm(op: ir.Operation) -> Produced | None:
    source, sizes, weight, bias, epsilon = op.operands
    extent, number = constant_ints(sizes), constant_number(epsilon)
    if is_none(weight) or is_none(bias) or extent is None or len(extent) != 1 or not number:
        return None
    if any(list(result.uses) for result in list(op.results)[1:]):
        return None
    vectors = {"weight": weight, "bias": bias}
    return Produced("layer_norm", source, [op], vectors=vectors, epsilon=float(number))


def _match_silu_and_multiply(op: ir.Operation) -> Produced | None:
    first, second = op.operands
    for activated, other in ((first, second), (second, first)):
        silu = _single(activated, "torch.aten.silu")
        if silu is not None and activated.type == other.type == op.result.type:
            return Produced("silu_and_multiply", silu.operands[0], [op, silu], other=other)
    return None


def _match_rms_norm(op: ir.Operation) -> Produced | None:
    """weight * (x * rsqrt(mean(x^2) + epsilon)), as models spell it."""
    first, second = op.operands
    for weight, normal in ((first, second), (second, first)):
        scaled = _single(normal, "torch.aten.mul.Tensor")
        if scaled is None or not _is_row_vector(weight, op.result):
            continue
        for source, inverse in (tuple(scaled.operands), tuple(scaled.operands)[::-1]):
            found = _match_inverse_rms(source, inverse)
            if found is not None:
                epsilon, ops = found
                return Produced("rms_norm", source, [op, scaled, *ops], vectors={"weight": weight}, epsilon=epsilon)
    return None


def _match_inverse_rms(source: ir.Value, value: ir.Value) -> tuple[float, list[ir.Operation]] | None:
    """rsqrt(mean(source^2 over the last dim) + epsilon): the epsilon, and the ops, last first."""
    rsqrt = _single(value, "torch.aten.rsqrt")
    add = _single(rsqrt.operands[0], "torch.aten.add.Scalar") if rsqrt is not None else None
    mean = _single(add.operands[0], "torch.aten.mean.dim") if add is not None else None
    square = _single(mean.operands[0], "torch.aten.pow.Tensor_Scalar") if mean is not None else None
    if rsqrt is None or add is None or mean is None or square is None:
        return None
    epsilon = constant_number(add.operands[1])
    plain = constant_number(add.operands[2]) == 1 and constant_number(square.operands[1]) == 2
    if not plain or not _is_over_rows(mean) or not epsilon or square.operands[0] != source:
        return None
    return float(epsilon), [rsqrt, add, mean, square]


def _is_over_rows(reduction: ir.Operation) -> bool:
    """Whether it reduces the last dim, counted from either end."""
    source = tensor_info(reduction.operands[0].type)
    return source is not None and constant_ints(reduction.operands[1]) in ([-1], [len(source.shape) - 1])


def _single(value: ir.Value, name: str) -> ir.Operation | None:
    """The op of this name that makes a value which nothing else reads."""
    op = defining_op(value)
    return op if op is not None and op.name == name and _is_read_once(value) else None


def _is_read_once(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1


def _is_row_vector(value: ir.Value, like: ir.Value) -> bool:
    vector, matrix = tensor_info(value.type), tensor_info(like.type)
    return vector is not None and matrix is not None and vector.shape == matrix.shape[-1:]
