"""The plan of each operation that CUDA has generated kernels for, from the call that a program declares.

Tensors are contiguous and begin at multiples of 16 bytes: a program sees to that before it calls. Sizes that are known
only at run time take the kernels for any size.
"""

from collections.abc import Mapping
from functools import singledispatch

from steelyard.codegen.launches.copies import (
    dequantize_into,
    part_memory,
    swizzle_into,
    swizzled_shape,
    transpose_into,
    turn_codes,
)
from steelyard.codegen.launches.grouped import fill_groups, multiply_groups_into
from steelyard.codegen.launches.groups import Groups
from steelyard.codegen.launches.plan import OPERAND, RESULT, Buffer, LaunchPlan, Memory, PlanBuilder
from steelyard.codegen.launches.products import finish_product, multiplied_rows, multiply_into
from steelyard.codegen.launches.quantize import find_amax, quantize_into
from steelyard.codegen.launches.sources import Filling, fill_from, fill_from_producer
from steelyard.codegen.launches.state import update_scale_into
from steelyard.codegen.launches.values import Matrix, StoredCopy, Vector
from steelyard.codegen.sizes import Extent, Size, plus, product_of
from steelyard.dialect.produce import NORMS, PRODUCERS
from steelyard.dialect.types import Shape, TensorInfo, tensor_info
from steelyard.errors import ConstraintError
from steelyard.formats.parts import is_stored_transposed, shared_rows
from steelyard.ir.kernel_calls import (
    AmaxCall,
    CopyCall,
    CopySlots,
    DequantizeCall,
    EpilogueCall,
    GemmCall,
    GemmOperand,
    GroupedCopySlots,
    GroupedGemmCall,
    GroupedQuantizeCall,
    KernelCall,
    ProduceQuantizeCall,
    QuantizeCall,
    QuantizingCall,
    SwizzleCall,
    TransposeCall,
    TurnCall,
    UpdateScaleCall,
)
from steelyard.targets.gemm_paths import NATIVE


@singledispatch
def plan_call(call: KernelCall) -> LaunchPlan | None:
    """What a call launches; None where torch runs it by a function of its own. Raises `ConstraintError`."""
    return None


class _Values:
    """The operands and results of a call by their positions, and the plan in the making."""

    def __init__(self, call: KernelCall):
        self.plan = PlanBuilder()
        self._count = len(call.operands)
        self._slots = (*call.operands, *call.results)
        self.sizes: list[Size] = [Extent(index) for index in range(self._count)[call.sizes]]

    def buffer(self, position: int) -> Buffer:
        """The tensor at a position."""
        if position < self._count:
            return Buffer(OPERAND, position)
        return Buffer(RESULT, position - self._count)

    def optional(self, position: int | None) -> Buffer | None:
        return None if position is None else self.buffer(position)

    def info(self, position: int) -> TensorInfo:
        slot = self._slots[position]
        info = tensor_info(slot.type)
        if info is None:
            raise ConstraintError("call_c3", f"{slot.name} must be a ranked tensor, got {slot.type}")
        return info

    def shape(self, position: int) -> tuple[Size, ...]:
        """The sizes of an operand."""
        known = enumerate(self.info(position).shape)
        return tuple(Extent(position, dim) if size is None else size for dim, size in known)

    def matrix(self, position: int) -> Matrix:
        """An operand, its leading dims flattened."""
        *lead, columns = self.shape(position)
        return Matrix.contiguous(self.buffer(position), self.info(position).dtype, product_of(tuple(lead)), columns)

    def out(self, position: int, rows: Size, columns: Size) -> Matrix:
        """A result, its leading dims flattened."""
        return Matrix.contiguous(self.buffer(position), self.info(position).dtype, rows, columns)

    def vector(self, position: int) -> Vector:
        return Vector(self.buffer(position), self.info(position).dtype)

    def copy(self, slots: CopySlots, shape: tuple[Size, Size]) -> StoredCopy:
        """A copy of a matrix of this shape."""
        codes, scales, amax = self.buffer(slots.codes), self.buffer(slots.scales), self.optional(slots.amax)
        return StoredCopy(slots.scheme, slots.columnwise, shape, codes, scales, amax)

    def given(self, shape: Shape) -> tuple[Size, ...]:
        """A shape whose unknown sizes are the last operands of the call."""
        sizes = iter(self.sizes)
        found = tuple(next(sizes, None) if size is None else size for size in shape)
        if any(size is None for size in found):
            raise ConstraintError("call_c3", f"there must be a size for each ? of {shape}, got {len(self.sizes)}")
        return found  # pyright: ignore[reportReturnType]

    def copy_shape(self, call: CopyCall) -> tuple[Size, Size]:
        """Rows and columns of the matrix that a copy is of."""
        *lead, columns = self.given(call.shape)
        return product_of(tuple(lead)), columns

    def finish(self, shapes: Mapping[int, tuple[Size, ...]] | None = None) -> LaunchPlan:
        """The plan; `shapes` are those of results by position, of which the types may not say all."""
        results = []
        for position in range(self._count, len(self._slots)):
            info = self.info(position)
            shape = (shapes or {}).get(position) or self.given(info.shape)
            results.append(Memory(shape, info.dtype))
        return self.plan.finish(results)


@plan_call.register
def _plan_quantize(call: QuantizeCall) -> LaunchPlan | None:
    if call.is_custom:
        return None
    values = _Values(call)
    return _quantized(values, call, fill_from([values.matrix(call.source)]), call.rng)


@plan_call.register
def _plan_produce_quantize(call: ProduceQuantizeCall) -> LaunchPlan:
    values = _Values(call)
    matrices, vectors = [values.matrix(call.source)], {}
    for position, name in enumerate(PRODUCERS[call.producer], call.source + 1):
        if call.producer in NORMS:
            vectors[name] = values.vector(position)
        else:
            matrices.append(values.matrix(position))
    filling = fill_from_producer(values.plan, call.producer, matrices, vectors, call.epsilon)
    return _quantized(values, call, filling)


def _quantized(values: _Values, call: QuantizingCall, filling: Filling, rng: int | None = None) -> LaunchPlan:
    shape = filling.rows, filling.columns
    copies = [values.copy(slots, shape) for slots in call.made_copies]
    scale, rng_buffer = values.optional(call.scale), values.optional(rng)
    quantize_into(values.plan, filling, copies, scale=scale, rng=rng_buffer)
    return values.finish(_part_shapes(call.made_copies, shape))


@plan_call.register
def _plan_grouped_quantize(call: GroupedQuantizeCall) -> LaunchPlan:
    values = _Values(call)
    copies = [(slots.scheme, slots.columnwise) for slots in call.made_copies]
    *_, rows, _ = values.shape(call.source)
    groups = Groups(call.groups, values.optional(call.ends))
    filling = fill_groups(fill_from([values.matrix(call.source)]), rows, groups, copies)
    made = [values.copy(slots, (filling.rows, filling.columns)) for slots in call.made_copies]
    quantize_into(values.plan, filling, made, scale=values.optional(call.scale), rng=values.optional(call.rng))
    return values.finish(_grouped_shapes(values, call))


def _grouped_shapes(values: _Values, call: GroupedQuantizeCall) -> dict[int, tuple[Size, ...]]:
    """The shapes of the parts of copies in groups, by position; of a number of rows that is not known, what groups of
    so many rows can need at most."""
    found: dict[int, tuple[Size, ...]] = {}
    *_, rows, columns = values.shape(call.source)
    for slots in call.made_copies:
        for part, place in slots.places.items():
            if None not in values.info(place).shape:
                continue
            shared = shared_rows(slots.scheme, part, slots.columnwise)
            unit = product_of(part_memory(slots.scheme, (1, columns), slots.columnwise)[part].shape)
            found[place] = ((rows if shared == 1 else plus(rows // shared, call.groups)) * unit,)
    return found


def _part_shapes(copies: tuple[CopySlots, ...], shape: tuple[Size, Size]) -> dict[int, tuple[Size, ...]]:
    """The shapes of the parts of copies, by position."""
    found = {}
    for slots in copies:
        memory = part_memory(slots.scheme, shape, slots.columnwise)
        found |= {place: memory[part].shape for part, place in slots.places.items()}
    return found


@plan_call.register
def _plan_gemm(call: GemmCall) -> LaunchPlan | None:
    if call.is_custom or call.path == NATIVE:
        return None
    values = _Values(call)
    rhs = values.copy(call.right.copy, _operand_shape(values, call.right))
    if call.left is None:
        plain = values.matrix(0)
        multiply_into(values.plan, plain, rhs, values.buffer(call.out), None)
        return values.finish({call.out: (*values.shape(0)[:-1], multiplied_rows(rhs))})
    lhs = values.copy(call.left.copy, _operand_shape(values, call.left))
    if not call.batch_dims:
        multiply_into(values.plan, lhs, rhs, values.buffer(call.out), None)
        return values.finish()
    lead = values.given(call.lhs_shape[:-1])
    count = product_of(lead[: call.batch_dims])
    # The batch dims of both are the same; only the rows of the right may be its own.
    rows = values.shape(call.right.copy.codes)[0]
    rhs = values.copy(call.right.copy, (rows, rhs.shape[1]))
    multiply_into(values.plan, lhs, rhs, values.buffer(call.out), count)
    return values.finish({call.out: (*lead, rows // count)})


def _operand_shape(values: _Values, operand: GemmOperand) -> tuple[Size, Size]:
    """Rows and columns of an operand; what no size tells is read off its codes, whose padding is zero."""
    codes, scheme = values.shape(operand.copy.codes), operand.copy.scheme
    length = codes[1] * 2 if scheme.element == "f4E2M1FN" else codes[1]
    stored = (length, codes[0]) if is_stored_transposed(scheme, operand.copy.columnwise) else (codes[0], length)
    *lead, columns = operand.shape
    unknown = lead.count(None)
    known = product_of(tuple(size for size in lead if size is not None))
    told = not unknown or len(values.sizes) >= unknown
    rows = known * product_of(tuple(values.sizes)) if unknown else known
    return rows if told else stored[0], stored[1] if columns is None else columns


@plan_call.register
def _plan_grouped_gemm(call: GroupedGemmCall) -> LaunchPlan | None:
    if call.path == NATIVE:
        return None
    values = _Values(call)
    ends = values.buffer(call.ends)
    lhs = values.matrix(0) if call.left is None else _grouped_copy(values, call.left)
    rhs = _grouped_copy(values, call.right)
    multiply_groups_into(values.plan, lhs, rhs, (call.groups, ends), values.vector(call.out))
    return values.finish()


def _grouped_copy(values: _Values, slots: GroupedCopySlots) -> StoredCopy:
    """A copy of all rows in groups, or of one matrix of a stack; rows that no size tells are read off its codes."""
    *_, rows, columns = slots.whole
    if columns is None:
        raise ConstraintError("call_c3", "the columns of a tensor in groups must be known when it is compiled")
    if rows is None:
        shared = shared_rows(slots.scheme, "codes", slots.columnwise)
        unit = product_of(part_memory(slots.scheme, (1, columns), slots.columnwise)["codes"].shape)
        (length,) = values.shape(slots.codes)
        return values.copy(slots, (length // unit * shared, columns))
    return values.copy(slots, (rows, columns))


@plan_call.register
def _plan_epilogue(call: EpilogueCall) -> LaunchPlan:
    values = _Values(call)
    given = {"source": call.source, "residual": call.residual}
    matrices = {name: values.matrix(position) for name, position in given.items() if position is not None}
    source = matrices["source"]
    bias = None if call.bias is None else values.vector(call.bias)
    written = [position for position in (call.out, call.preactivation) if position is not None]
    outs = tuple(values.out(position, source.rows, source.columns) for position in written)
    finish_product(values.plan, matrices, bias, outs, call.epilogue)
    return values.finish(dict.fromkeys(written, values.shape(call.source)))


@plan_call.register
def _plan_dequantize(call: DequantizeCall) -> LaunchPlan:
    values = _Values(call)
    shape = values.copy_shape(call)
    dequantize_into(values.plan, values.copy(call.copy, shape), values.out(len(call.operands), *shape))
    return values.finish({len(call.operands): values.given(call.shape)})


@plan_call.register
def _plan_transpose(call: TransposeCall) -> LaunchPlan:
    values = _Values(call)
    shape = values.copy_shape(call)
    transpose_into(values.plan, values.copy(call.copy, shape), values.copy(call.made_copy, shape))
    return values.finish(_part_shapes((call.made_copy,), shape))


@plan_call.register
def _plan_turn(call: TurnCall) -> LaunchPlan:
    values = _Values(call)
    rows, columns = values.shape(0)
    turn_codes(values.plan, values.buffer(0), values.buffer(1), rows, columns)
    return values.finish({1: (columns, rows)})


@plan_call.register
def _plan_swizzle(call: SwizzleCall) -> LaunchPlan:
    values = _Values(call)
    rows, columns = values.shape(0)
    swizzle_into(values.plan, call.scheme, call.columnwise, values.buffer(0), (rows, columns), values.buffer(1))
    return values.finish({1: swizzled_shape(call.scheme, call.columnwise, (rows, columns))})


@plan_call.register
def _plan_amax(call: AmaxCall) -> LaunchPlan:
    values = _Values(call)
    filling, out = fill_from([values.matrix(0)]), values.buffer(1)
    find_amax(values.plan, filling, out, columnwise=call.rht, rht=call.rht, per_line=call.per_row)
    return values.finish({1: values.shape(0)[:-1]} if call.per_row else {})


@plan_call.register
def _plan_update_scale(call: UpdateScaleCall) -> LaunchPlan:
    values = _Values(call)
    scale, history, amax, new_scale, new_history = (values.buffer(position) for position in range(5))
    shape = values.shape(1)
    update_scale_into(
        values.plan,
        call.scheme,
        (scale, history),
        amax,
        (new_scale, new_history),
        shape,
        margin=call.margin,
        algorithm=call.algorithm,
        reduce=call.reduce,
    )
    return values.finish({4: shape})
