"""`scaled-partition`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from torch_mlir import ir

from steelyard.dialect.matmul import USAGES, GemmOp
from steelyard.dialect.quantize import DequantizeOp, NarrowOp, TransposeOp, narrow
from steelyard.dialect.types import TensorType, tensor_info
from steelyard.passes.functions import (
    GRADIENT,
    PRIMAL,
    SAVED,
    SOURCES,
    STATE,
    TANGENT,
    WEIGHT,
    argument_attributes,
    functions_of,
    is_training,
    make_function,
    result_attributes,
)
from steelyard.passes.gemm_kinds import find_gradients
from steelyard.passes.insert_quantize import RNG
from steelyard.passes.locations import RECOMPUTE, checkpoint_rule
from steelyard.passes.registry import register_pass
from steelyard.passes.torch_ops import op_name
from steelyard.quantized_parts import part_shapes

Attributes = dict[str, ir.Attribute]

# Ops whose result shares their operand's memory.
_VIEWS = {
    f"torch.aten.{name}"
    for name in (
        *("t", "transpose.int", "permute", "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "squeeze.dim"),
        *("select.int", "slice.Tensor", "detach", "alias", "split.Tensor", "split_with_sizes"),
    )
} | {"torch.tensor_static_info_cast"}
_POINTWISE = {
    f"torch.aten.{name}"
    for name in (
        *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor", "mul.Scalar"),
        *("div.Tensor", "div.Scalar", "neg", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "rsqrt", "reciprocal"),
        *("pow.Tensor_Scalar", "where.self", "_to_copy", "to.dtype", "clone", "contiguous", "cos", "sin", "sqrt"),
        *("gt.Scalar", "lt.Scalar", "ge.Scalar", "le.Scalar", "eq.Scalar", "ne.Scalar", "logical_not", "reshape"),
        *("masked_fill.Scalar", "full", "zeros", "ones", "arange", "full_like", "zeros_like", "ones_like"),
    )
} | {"torch.prims.convert_element_type"}
_RANDOM = ("dropout", "bernoulli", "rand", "multinomial", "normal_functional", "uniform")
_ITEM_SIZES = {"f64": 8, "si64": 8, "f32": 4, "si32": 4, "bf16": 2, "f16": 2, "si16": 2}


@register_pass
def partition(module: ir.Operation) -> None:
    """Split a function with gradients into `@forward` and `@backward`, and keep as few bytes between them as it can.

    Takes one function whose gradients are marked (`scaled.tangent` arguments, `scaled.gradient` results). Leaves
    `@forward`, whose last results are what is kept (`scaled.saved`), and `@backward`, which takes those, the arguments
    of the forward that it reads (`scaled.primal`), the tangents, state and weights. A quantized tensor is kept with the
    copies that the backward reads, no more. Arguments, quantized weights and state cost nothing. Views, decoding, and
    pointwise ops whose operands cost less than their result are computed again; so is what a checkpointed region says,
    but for random numbers. Everything else that the backward reads is kept.
    """
    for function in functions_of(module):
        if is_training(function):
            _split(module, function)


def _split(module: ir.Operation, function: ir.Operation) -> None:
    plan = _Plan(function)
    plan.decide()
    names = {"forward": plan.forward(), "backward": plan.backward()}
    for name, (arguments, ops, results) in names.items():
        make_function(module, name, arguments, ops, results, function.location)
    function.erase()


@dataclass
class _Kept:
    """A value that the forward leaves to the backward."""

    value: ir.Value
    usage: str | None
    """The one copy of a quantized tensor that is read; None for all there is."""
    narrow: ir.Operation | None = None
    """The op that leaves just that copy."""

    @property
    def result(self) -> ir.Value:
        return self.value if self.narrow is None else self.narrow.result


@dataclass
class _Plan:
    """What runs where, and what is kept."""

    function: ir.Operation
    saved: list[_Kept] = field(default_factory=list)
    recomputed: set[ir.Operation] = field(default_factory=set)

    def __post_init__(self):
        block = self.function.regions[0].blocks[0]
        *self.ops, self.terminator = [op.operation for op in block.operations]
        self.arguments = list(zip(block.arguments, argument_attributes(self.function), strict=True))
        self.gradients = find_gradients(self.function)
        self.results = list(zip(self.terminator.operands, result_attributes(self.function), strict=True))
        self._attributes: dict[ir.Value, Attributes] = dict(self.arguments)
        moved = {v for v, own in self.results if STATE in own and self._is_backward(v, own)}
        self._backward_ops = {op for op in self.ops if _makes(op, self.gradients) or _makes(op, moved)}

    def decide(self) -> None:
        """Choose what is kept and what is computed again, walking back from the gradients."""
        required = {value for value, attributes in self.results if self._is_backward(value, attributes)}
        by_recomputation: set[ir.Value] = set()
        for op in reversed(self.ops):
            if op in self._backward_ops:
                required.update(op.operands)
                continue
            wanted = [result for result in op.results if result in required]
            if not wanted:
                continue
            if self._is_recomputed(op, wanted, required):
                self.recomputed.add(op)
                required.update(op.operands)
                by_recomputation.update(op.operands)
            else:
                self.saved += [_Kept(value, None) for value in wanted]
        # State has moved on when the backward runs: what is computed again reads what it was.
        stale = [v for v, own in self.arguments if STATE in own and v in by_recomputation]
        self.saved += [_Kept(value, None) for value in stale]
        self.saved.reverse()
        self._narrow_saved()

    def _is_backward(self, value: ir.Value, attributes: Attributes) -> bool:
        if GRADIENT in attributes:
            return True
        if STATE not in attributes:
            return False
        # Random bits are those of the gradients.
        return value in self.gradients or ir.StringAttr(attributes[STATE]).value == RNG

    def _is_recomputed(self, op: ir.Operation, wanted: Sequence[ir.Value], required: set[ir.Value]) -> bool:
        name = op_name(op)
        if any(word in name for word in _RANDOM):
            return False
        rule = checkpoint_rule(op.location)
        if rule is not None:
            return rule == RECOMPUTE
        if not any(_is_tensor(result) for result in op.results):
            return True
        if name in _VIEWS or isinstance(op.opview, DequantizeOp | TransposeOp | NarrowOp):
            return True
        if name not in _POINTWISE:
            return False
        new = [operand for operand in op.operands if operand not in required and not self._is_free(operand)]
        return sum(map(_byte_size, new)) < sum(map(_byte_size, wanted))

    def _is_free(self, value: ir.Value) -> bool:
        """Arguments are there anyway, and what has no elements costs nothing."""
        return value in self._attributes or not _is_tensor(value)

    def _narrow_saved(self) -> None:
        readers = [op for op in self.ops if op in self._backward_ops or op in self.recomputed]
        usages: dict[ir.Value, set[str]] = {}
        for op in readers:
            for number, value in enumerate(op.operands):
                if isinstance(value.type, TensorType):
                    usages.setdefault(value, set()).update(_usages(op, number))
        for kept in self.saved:
            if isinstance(kept.value.type, TensorType) and len(kept.value.type.info.schemes) == 2:
                read = usages[kept.value]
                kept.usage = next(iter(read)) if len(read) == 1 else None
                if kept.usage is not None:
                    maker = kept.value.owner
                    kept.narrow = narrow(kept.value, kept.usage, loc=maker.location, ip=_after(maker)).operation
        self.ops = [op.operation for op in self.function.regions[0].blocks[0].operations][:-1]

    def forward(self) -> tuple[list, list, list]:
        """Arguments, ops and results of the forward."""
        results = [(v, own) for v, own in self.results if not self._is_backward(v, own)]
        results += [(kept.result, {SAVED: ir.UnitAttr.get()}) for kept in self.saved]
        ops = _live(self.ops, [value for value, _ in results])
        taken = self._taken(ops, results)
        arguments = [(a, own) for a, own in self.arguments if a in taken or _is_primal(own)]
        return _with_sources(self.arguments, arguments), ops, results

    def backward(self) -> tuple[list, list, list]:
        """Arguments, ops and results of the backward."""
        results = [(v, own) for v, own in self.results if self._is_backward(v, own)]
        ops = [op for op in self.ops if op in self._backward_ops or op in self.recomputed]
        ops = _live(ops, [value for value, _ in results])
        kept = {kept.value: kept.result for kept in self.saved}
        taken = self._taken(ops, results) - kept.keys()
        rest = [(a, own) for a, own in self.arguments if a in taken and TANGENT not in own]
        arguments = [((value, stored), {SAVED: ir.UnitAttr.get()}) for value, stored in kept.items()]
        arguments += [(a, own | {PRIMAL: _integer(a.arg_number)}) for a, own in rest if _is_primal(own)]
        arguments += [(a, own) for a, own in self.arguments if TANGENT in own]
        arguments += [(a, own) for a, own in rest if not _is_primal(own)]
        return _with_sources(self.arguments, arguments), ops, results

    def _taken(self, ops: list[ir.Operation], results: list[tuple[ir.Value, Attributes]]) -> set[ir.Value]:
        """The arguments that a function reads: parts of a weight come together, with what it is made from."""
        read = {operand for op in ops for operand in op.operands} | {value for value, _ in results}
        weights = {str(own[WEIGHT]) for argument, own in self.arguments if WEIGHT in own and argument in read}
        groups = [(a, own) for a, own in self.arguments if WEIGHT in own and str(own[WEIGHT]) in weights]
        numbers = {number for _, own in groups for number in ir.DenseI64ArrayAttr(own[SOURCES])}
        sources = {argument for argument, _ in self.arguments if argument.arg_number in numbers}
        return (read & self._attributes.keys()) | {argument for argument, _ in groups} | sources


def _makes(op: ir.Operation, values: set[ir.Value]) -> bool:
    return any(result in values for result in op.results)


def _with_sources(old: list, new: list) -> list:
    """The arguments with `scaled.sources` counted anew."""
    positions = {}
    for position, (value, _) in enumerate(new):
        positions[value[0] if isinstance(value, tuple) else value] = position
    renumbered = {argument.arg_number: positions.get(argument) for argument, _ in old}
    result = []
    for value, own in new:
        if SOURCES in own:
            numbers = [renumbered[number] for number in ir.DenseI64ArrayAttr(own[SOURCES])]
            own = own | {SOURCES: ir.DenseI64ArrayAttr.get(numbers)}
        result.append((value, own))
    return result


def _is_primal(own: Attributes) -> bool:
    """An argument of the graph itself, not state or a weight that passes added."""
    return STATE not in own and WEIGHT not in own and TANGENT not in own


def _live(ops: Iterable[ir.Operation], results: Sequence[ir.Value]) -> list[ir.Operation]:
    """The ops that the results depend on, in order."""
    read = set(results)
    live = []
    for op in reversed(list(ops)):
        if any(result in read for result in op.results):
            live.append(op)
            read.update(op.operands)
    return live[::-1]


def _usages(op: ir.Operation, number: int) -> tuple[str, ...]:
    """The copies of a quantized operand that an op reads."""
    view = op.opview
    if isinstance(view, GemmOp):
        return (USAGES[view.kind.value][number],)
    if isinstance(view, DequantizeOp):
        return (view.usage.value,)
    return ("rowwise", "columnwise")


def _after(op: ir.Operation | ir.OpView) -> ir.InsertionPoint:
    return ir.InsertionPoint.after(op)


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) or tensor_info(value.type) is not None


def _byte_size(value: ir.Value) -> int:
    """Bytes of a tensor; a size known only at run time counts as one, on both sides of a comparison."""
    type_ = value.type
    if isinstance(type_, TensorType):
        info = type_.info
        copies = [(s, columnwise) for s, columnwise in ((info.row, False), (info.col, True)) if s is not None]
        shape = prod(size or 1 for size in info.shape[:-1]), info.shape[-1] or 1
        parts = [part for s, columnwise in copies for part in part_shapes(s, shape, columnwise).values()]
        return sum(prod(size or 1 for size in sizes) * (4 if dtype == "f32" else 1) for sizes, dtype in parts)
    info = tensor_info(type_)
    return 0 if info is None else prod(size or 1 for size in info.shape) * _ITEM_SIZES.get(info.dtype, 1)


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
