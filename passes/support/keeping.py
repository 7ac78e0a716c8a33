"""What a forward keeps for its backward, and what the backward computes again: the rules of `scaled-partition`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.grouped import GroupedGemmOp
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.measure import MeasureQuantizeOp
from steelyard.dialect.quantize import DequantizeOp, NarrowOp, QuantizeOp, TransposeOp, narrow
from steelyard.dialect.types import TensorType, tensor_info
from steelyard.formats.gemms import OPERAND_USAGES
from steelyard.ir.attributes import STATE
from steelyard.ir.joint import Joint
from steelyard.ir.locations import RECOMPUTE, checkpoint_rule
from steelyard.ir.saved import byte_size, memory_of
from steelyard.ir.torch_ops import cast, defining_op, op_name
from steelyard.ir.view_ops import SHARES_MEMORY

_POINTWISE = {
    f"torch.aten.{name}"
    for name in (
        *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor", "mul.Scalar"),
        *("div.Tensor", "div.Scalar", "neg", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "rsqrt", "reciprocal"),
        *("pow.Tensor_Scalar", "where.self", "_to_copy", "to.dtype", "clone", "contiguous", "cos", "sin", "sqrt"),
        *("gt.Scalar", "lt.Scalar", "ge.Scalar", "le.Scalar", "eq.Scalar", "ne.Scalar", "logical_not", "reshape"),
        *("masked_fill.Scalar", "full", "zeros", "ones", "arange", "full_like", "zeros_like", "ones_like"),
    )
} | {
    "torch.prims.convert_element_type",
    "stablehlo.convert",
    *(f"jax.{name}" for name in ("literal", "absent", "broadcast_in_dim", "iota", "neg", "not")),
    *(f"jax.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
}
_NORMS = ("torch.aten.native_layer_norm",)
_TOLERANT = {
    "torch.aten.gelu_backward": (1,),
    "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward": (1, 2, 3),
}
"""Op of the backward -> operands that may have lost bits: the input of gelu; queries, keys and values."""
_RANDOM = ("dropout", "bernoulli", "rand", "multinomial", "normal_functional", "uniform")


@dataclass
class Kept:
    """A value that the forward leaves to the backward."""

    value: ir.Value
    stored: ir.Value | None = None
    """What is kept in its place: one copy of a quantized tensor, or the value in bf16."""
    restored: ir.Operation | None = None
    """The op that makes the value of that again, where it has another type to its readers."""

    @property
    def result(self) -> ir.Value:
        """What is kept."""
        return self.value if self.stored is None else self.stored


class Keeping:
    """Decides for a joint function: `saved` is kept, `rerun` are the ops of the backward and those it runs again."""

    def __init__(self, joint: Joint, *, compact: bool):
        self._joint = joint
        self._compact = compact
        self._required: set[ir.Value] = set()
        self._required_memory: set[ir.Value] = set()
        self.saved: list[Kept] = []
        self.rerun: set[ir.Operation] = set(joint.backward_ops)
        self._decide()
        self._narrow_saved()
        if compact:
            self._shorten_saved()
        joint.reread_ops()

    def substitutes(self) -> dict[ir.Value, ir.Value]:
        """What readers in the backward take in the place of values that are kept in another type."""
        return {kept.value: kept.restored.result for kept in self.saved if kept.restored is not None}

    def _decide(self) -> None:
        """Choose what is kept and what is computed again, walking back from the gradients."""
        joint = self._joint
        self._require(value for value, _ in joint.backward_results)
        # All that the gradients read comes first: it decides what is there to compute other values from.
        for op in joint.backward_ops:
            self._require(op.operands)
        read_again: set[ir.Value] = set()
        for op in reversed(joint.ops):
            wanted = [result for result in op.results if result in self._required]
            if op in joint.backward_ops or not wanted:
                continue
            if self._is_computed_again(op, wanted):
                self.rerun.add(op)
                self._require(op.operands)
                read_again.update(op.operands)
            else:
                self.saved += [Kept(value) for value in wanted]
        # State is updated before the backward runs: what is computed again, weights too, reads the old state.
        read_again |= joint.sources_of(joint.weights_in(self._required))
        self.saved += [Kept(a) for a, own in joint.arguments.items() if STATE in own and a in read_again]
        self.saved.reverse()

    def _require(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self._required.add(value)
            self._required_memory.add(memory_of(value))

    def _is_computed_again(self, op: ir.Operation, wanted: Sequence[ir.Value]) -> bool:
        name = op_name(op)
        if any(word in name for word in _RANDOM):
            return False
        # Only tensors are kept, whatever a checkpointed region says of its sizes.
        if not any(_is_tensor(result) for result in op.results):
            return True
        rule = checkpoint_rule(op.location)
        if rule is not None:
            return rule == RECOMPUTE
        if name in SHARES_MEMORY or isinstance(op.opview, DequantizeOp | TransposeOp | NarrowOp):
            return True
        if self._compact and (self._is_norm_of_kept(op) or self._is_quantized_again(op)):
            return True
        if name not in _POINTWISE:
            return False
        new = [operand for operand in op.operands if not self._is_there(operand)]
        return sum(byte_size(value.type) for value in new) < sum(byte_size(value.type) for value in wanted)

    def _is_there(self, value: ir.Value) -> bool:
        """Arguments are there anyway, what the backward reads is kept, and what has no elements costs nothing."""
        memory = memory_of(value)
        return memory in self._joint.arguments or memory in self._required_memory or not _is_tensor(value)

    def _is_norm_of_kept(self, op: ir.Operation | None) -> bool:
        return op is not None and op.name in _NORMS and self._is_there(op.operands[0])

    def _is_quantized_again(self, op: ir.Operation) -> bool:
        """A quantization, of what is there or of its norm."""
        if not isinstance(op.opview, QuantizeOp) or op.opview.rng is not None:
            return False
        source = op.opview.source
        return self._is_there(source) or self._is_norm_of_kept(defining_op(memory_of(source)))

    def _narrow_saved(self) -> None:
        """Keep of a quantized tensor the one copy that is read."""
        usages: dict[ir.Value, set[str]] = {}
        for op in self.rerun:
            for number, value in enumerate(op.operands):
                if isinstance(value.type, TensorType):
                    usages.setdefault(value, set()).update(_usages(op, number))
        for kept in self.saved:
            type_ = kept.value.type
            if isinstance(type_, TensorType) and len(type_.info.schemes) == 2 and len(usages[kept.value]) == 1:
                maker = kept.value.owner
                ip = ir.InsertionPoint.after(maker)
                kept.stored = narrow(kept.value, *usages[kept.value], loc=maker.location, ip=ip).result

    def _shorten_saved(self) -> None:
        """Keep in bf16 what only the backward of gelu or of attention reads."""
        for kept in self.saved:
            info = tensor_info(kept.value.type)
            if info is None or info.dtype != "f32" or not self._is_read_tolerantly(kept.value):
                continue
            maker = kept.value.owner
            with ir.InsertionPoint.after(maker), maker.location:
                kept.stored = cast(kept.value, "bf16")
                kept.restored = defining_op(cast(kept.stored, "f32"))
            assert kept.restored is not None
            constants = map(defining_op, list(kept.restored.operands)[1:])
            self.rerun.update([kept.restored, *(constant for constant in constants if constant is not None)])

    def _is_read_tolerantly(self, value: ir.Value) -> bool:
        readers = [(use.owner.operation, use.operand_number) for use in value.uses]
        readers = [(op, number) for op, number in readers if op in self.rerun]
        return bool(readers) and all(self._tolerates(op, number) for op, number in readers)

    def _tolerates(self, op: ir.Operation, number: int) -> bool:
        if number in _TOLERANT.get(op_name(op), ()):
            return True
        is_view = op not in self._joint.backward_ops and op_name(op) in SHARES_MEMORY
        return is_view and all(self._is_read_tolerantly(result) for result in op.results if self._is_read(result))

    def _is_read(self, value: ir.Value) -> bool:
        return any(use.owner.operation in self.rerun for use in value.uses)


def _usages(op: ir.Operation, number: int) -> tuple[str, ...]:
    """The copies of a quantized operand that an op reads."""
    view = op.opview
    if isinstance(view, GemmOp | GroupedGemmOp):
        return (OPERAND_USAGES[view.kind.value][number],)
    if isinstance(view, DequantizeOp | MeasureQuantizeOp):
        return (view.usage.value,)
    return ("rowwise", "columnwise")


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) or tensor_info(value.type) is not None
