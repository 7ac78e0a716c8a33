"""What norms and activations are computed from, as models spell them in torch's ops."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch_mlir import ir

from steelyard.dialect.types import tensor_info
from steelyard.ir.torch_ops import activation_of, constant_ints, constant_number, defining_op, is_none


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


def match_producer(value: ir.Value) -> Produced | None:
    """What a value is computed from, if a producer makes it."""
    op = defining_op(value)
    if op is None:
        return None
    matchers: dict[str, Callable[[ir.Operation], Produced | None]] = {
        "torch.aten.native_layer_norm": _match_whole_layer_norm,
        "torch.aten.mul.Tensor": lambda mul: _match_silu_and_multiply(mul) or match_rms_norm(mul),
    }
    if op.name in matchers:
        return matchers[op.name](op)
    activation = activation_of(op)
    return None if activation is None else Produced(activation, op.operands[0], [op])


def match_layer_norm(op: ir.Operation) -> Produced | None:
    """A layer norm over the last dim."""
    source, sizes, weight, bias, epsilon = op.operands
    extent, number = constant_ints(sizes), constant_number(epsilon)
    if extent is None or len(extent) != 1 or not number or (is_none(weight) and not is_none(bias)):
        return None
    vectors = {name: value for name, value in (("weight", weight), ("bias", bias)) if not is_none(value)}
    return Produced("layer_norm", source, [op], vectors=vectors, epsilon=float(number))


def _match_whole_layer_norm(op: ir.Operation) -> Produced | None:
    """One with weight and bias, whose statistics nobody reads."""
    found = match_layer_norm(op)
    if any(list(result.uses) for result in list(op.results)[1:]):
        return None
    return found if found is not None and len(found.vectors) == 2 else None


def _match_silu_and_multiply(op: ir.Operation) -> Produced | None:
    first, second = op.operands
    for activated, other in ((first, second), (second, first)):
        silu = _single(activated, "torch.aten.silu")
        if silu is not None and activated.type == other.type == op.result.type:
            return Produced("silu_and_multiply", silu.operands[0], [op, silu], other=other)
    return None


def match_rms_norm(op: ir.Operation) -> Produced | None:
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
    if not plain or not is_over_rows(mean) or not epsilon or square.operands[0] != source:
        return None
    return float(epsilon), [rsqrt, add, mean, square]


def is_over_rows(reduction: ir.Operation) -> bool:
    """Whether it reduces the last dim, counted from either end."""
    source = tensor_info(reduction.operands[0].type)
    return source is not None and constant_ints(reduction.operands[1]) in ([-1], [len(source.shape) - 1])


def _single(value: ir.Value, name: str) -> ir.Operation | None:
    """The op of this name that makes a value which nothing else reads."""
    op = defining_op(value)
    return op if op is not None and op.name == name and is_read_once(value) else None


def is_read_once(value: ir.Value) -> bool:
    """Whether one op reads a value, once."""
    return len(list(value.uses)) == 1


def _is_row_vector(value: ir.Value, like: ir.Value) -> bool:
    vector, matrix = tensor_info(value.type), tensor_info(like.type)
    return vector is not None and matrix is not None and vector.shape == matrix.shape[-1:]
