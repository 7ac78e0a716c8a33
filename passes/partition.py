"""`scaled-partition`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from steelyard.dialect.matmul import USAGES, GemmOp
from steelyard.dialect.quantize import DequantizeOp, NarrowOp, QuantizeOp, TransposeOp, narrow
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
from steelyard.passes.registry import fail, register_pass
from steelyard.passes.saved import VIEWS, byte_size, memory_of
from steelyard.passes.torch_ops import cast, defining_op, op_name

Attributes = dict[str, ir.Attribute]

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
COMPACT = "compact"
_NORMS = ("torch.aten.native_layer_norm",)
_TOLERANT = {
    "torch.aten.gelu_backward": (1,),
    "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward": (1, 2, 3),
}
"""Op of the backward -> operands that may have lost bits: the input of gelu; queries, keys and values."""
_RANDOM = ("dropout", "bernoulli", "rand", "multinomial", "normal_functional", "uniform")


@register_pass
def partition(module: ir.Operation, *, save: str = "") -> None:
    """Split a function with gradients into `@forward` and `@backward`, and keep as few bytes between them as it can.

    Takes one function whose gradients are marked (`scaled.tangent` arguments, `scaled.gradient` results). Leaves
    `@forward`, whose last results are what is kept (`scaled.saved`), and `@backward`, which takes those, the arguments
    of the forward that it reads (`scaled.primal`), the tangents, state and weights. A quantized tensor is kept with the
    copies that the backward reads, no more. Arguments, quantized weights and state cost nothing. Views, decoding, and
    pointwise ops whose operands cost less than their result are computed again; so is what a checkpointed region says,
    but for random numbers. Everything else that the backward reads is kept. With `save=compact`, quantizations of what
    is kept anyway, or of its norm, are computed again, and the inputs of gelu and of attention are kept in bf16.
    """
    if save not in ("", COMPACT):
        fail(module, f"save must be '{COMPACT}' or empty, got '{save}'")
    for function in functions_of(module):
        if is_training(function):
            _split(module, function, save == COMPACT)


def _split(module: ir.Operation, function: ir.Operation, compact: bool) -> None:
    plan = _Plan(function, compact)
    plan.decide()
    forward, backward = plan.forward(), plan.backward()
    make_function(module, "forward", *forward, function.location)
    make_function(module, "backward", *backward, function.location, plan.substitutes())
    function.erase()


@dataclass
class _Kept:
    """A value that the forward leaves to the backward."""

    value: ir.Value
    stored: ir.Value | None = None
    """What is kept in its place: one copy of a quantized tensor, or the value in bf16."""
    restored: ir.Operation | None = None
    """The op that makes the value of that again, where it has another type to its readers."""

    @property
    def result(self) -> ir.Value:
        return self.value if self.stored is None else self.stored


@dataclass
class _Plan:
    """What runs where, and what is kept."""

    function: ir.Operation
    compact: bool
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
        self._required: set[ir.Value] = set()
        self._required_memory: set[ir.Value] = set()

    def decide(self) -> None:
        """Choose what is kept and what is computed again, walking back from the gradients."""
        self._require(value for value, attributes in self.results if self._is_backward(value, attributes))
        # All that the gradients read comes first: it decides what is there to compute other values from.
        for op in self._backward_ops:
            self._require(op.operands)
        by_recomputation: set[ir.Value] = set()
        for op in reversed(self.ops):
            wanted = [result for result in op.results if result in self._required]
            if op in self._backward_ops or not wanted:
                continue
            if self._is_recomputed(op, wanted):
                self.recomputed.add(op)
                self._require(op.operands)
                by_recomputation.update(op.operands)
            else:
                self.saved += [_Kept(value) for value in wanted]
        # State has moved on when the backward runs: what is computed again, weights too, reads what it was.
        by_recomputation |= self._sources_of_weights(self._required)
        stale = [v for v, own in self.arguments if STATE in own and v in by_recomputation]
        self.saved += [_Kept(value) for value in stale]
        self.saved.reverse()
        self._narrow_saved()
        if self.compact:
            self._shorten_saved()
        self.ops = [op.operation for op in self.function.regions[0].blocks[0].operations][:-1]

    def _require(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self._required.add(value)
            self._required_memory.add(memory_of(value))

    def _is_backward(self, value: ir.Value, attributes: Attributes) -> bool:
        if GRADIENT in attributes:
            return True
        if STATE not in attributes:
            return False
        # Random bits are those of the gradients.
        return value in self.gradients or ir.StringAttr(attributes[STATE]).value == RNG

    def _is_recomputed(self, op: ir.Operation, wanted: Sequence[ir.Value]) -> bool:
        name = op_name(op)
        if any(word in name for word in _RANDOM):
            return False
        rule = checkpoint_rule(op.location)
        if rule is not None:
            return rule == RECOMPUTE
        if not any(_is_tensor(result) for result in op.results):
            return True
        if name in VIEWS or isinstance(op.opview, DequantizeOp | TransposeOp | NarrowOp):
            return True
        if self.compact and self._is_quantized_again(op):
            return True
        if name not in _POINTWISE:
            return False
        new = [operand for operand in op.operands if not self._is_there(operand)]
        return sum(byte_size(v.type) for v in new) < sum(byte_size(v.type) for v in wanted)

    def _is_there(self, value: ir.Value) -> bool:
        """Arguments are there anyway, what the backward reads is kept, and what has no elements costs nothing."""
        memory = memory_of(value)
        return memory in self._attributes or memory in self._required_memory or not _is_tensor(value)

    def _is_quantized_again(self, op: ir.Operation) -> bool:
        """A quantization of what is there, or of its norm; or that norm, for such a quantization."""
        if op.name in _NORMS:
            return self._is_there(op.operands[0])
        if not isinstance(op.opview, QuantizeOp) or op.opview.rng is not None:
            return False
        norm = defining_op(memory_of(op.opview.source))
        return self._is_there(op.opview.source) or (norm is not None and self._is_quantized_again_norm(norm))

    def _is_quantized_again_norm(self, op: ir.Operation) -> bool:
        return op.name in _NORMS and self._is_there(op.operands[0])

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
                if len(read) == 1:
                    maker = kept.value.owner
                    kept.stored = narrow(kept.value, *read, loc=maker.location, ip=_after(maker)).result

    def _shorten_saved(self) -> None:
        """Keep in bf16 what only the backward of gelu or of attention reads."""
        for kept in self.saved:
            info = tensor_info(kept.value.type)
            if info is None or info.dtype != "f32" or not self._is_read_by_tolerant_ops(kept.value):
                continue
            maker = kept.value.owner
            with _after(maker), maker.location:
                kept.stored = cast(kept.value, "bf16")
                kept.restored = defining_op(cast(kept.stored, "f32"))
            self._backward_ops.add(kept.restored)
            self.recomputed.update(filter(None, map(defining_op, list(kept.restored.operands)[1:])))

    def _is_read_by_tolerant_ops(self, value: ir.Value) -> bool:
        readers = [use for use in value.uses if use.owner.operation in self._backward_ops | self.recomputed]
        return bool(readers) and all(self._tolerates(use.owner.operation, use.operand_number) for use in readers)

    def _tolerates(self, op: ir.Operation, number: int) -> bool:
        if number in _TOLERANT.get(op_name(op), ()):
            return True
        is_view = op in self.recomputed and op_name(op) in VIEWS
        return is_view and all(self._is_read_by_tolerant_ops(r) for r in op.results if self._is_read(r))

    def _is_read(self, value: ir.Value) -> bool:
        return any(use.owner.operation in self._backward_ops | self.recomputed for use in value.uses)

    def substitutes(self) -> dict[ir.Value, ir.Value]:
        """What readers in the backward take in the place of values that are kept in another type."""
        return {kept.value: kept.restored.result for kept in self.saved if kept.restored is not None}

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
        ops = _live(ops, [value for value, _ in results], self.substitutes())
        kept = {kept.value if kept.restored is None else kept.result: kept.result for kept in self.saved}
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
        weights = {argument for argument, _ in self._weights_in(read)}
        return (read & self._attributes.keys()) | weights | self._sources_of_weights(read)

    def _weights_in(self, read: set[ir.Value]) -> list[tuple[ir.Value, Attributes]]:
        names = {str(own[WEIGHT]) for argument, own in self.arguments if WEIGHT in own and argument in read}
        return [(argument, own) for argument, own in self.arguments if WEIGHT in own and str(own[WEIGHT]) in names]

    def _sources_of_weights(self, read: set[ir.Value]) -> set[ir.Value]:
        numbers = {number for _, own in self._weights_in(read) for number in ir.DenseI64ArrayAttr(own[SOURCES])}
        return {argument for argument, _ in self.arguments if argument.arg_number in numbers}


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


def _live(
    ops: Iterable[ir.Operation], results: Sequence[ir.Value], substitutes: Mapping[ir.Value, ir.Value] | None = None
) -> list[ir.Operation]:
    """The ops that the results depend on, in order."""
    substitutes = substitutes or {}
    read = {substitutes.get(value, value) for value in results}
    live = []
    for op in reversed(list(ops)):
        if any(result in read for result in op.results):
            live.append(op)
            read.update(substitutes.get(operand, operand) for operand in op.operands)
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


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
