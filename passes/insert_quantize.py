"""`scaled-insert-quantize`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.grouped import GroupedMatmulOp, grouped_gemm
from steelyard.dialect.matmul import MatmulOp, gemm
from steelyard.dialect.quantize import dequantize, quantize, scale_shape, stored
from steelyard.dialect.scale import advance_rng, count_saturated, update_scale
from steelyard.dialect.types import ScaledInfo, TensorInfo, tensor_info
from steelyard.formats.gemms import OPERAND_USAGES, ROWWISE, Role
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import BODIES, DECODED, DELAYED, LAYER, REDUCE, RNG, STATE, TRAINED
from steelyard.ir.bodies import (
    added_states,
    argument_states,
    bodies_first,
    body_names,
    extend_op,
    loops_around,
    trips_of,
)
from steelyard.ir.functions import (
    add_argument,
    append_results,
    argument_name,
    functions_of,
    is_private,
    is_training,
)
from steelyard.ir.gradients import find_gradients, operand_roles
from steelyard.ir.stored import stored_scheme
from steelyard.ir.torch_ops import flatten_root, walk_ops
from steelyard.passes.pipeline.registry import fail, register_pass


@register_pass
def insert_quantize(module: ir.Operation) -> None:
    """Quantize the operands of the GEMMs that a recipe was applied to.

    Takes `scaled.matmul` with the schemes of its operands. Leaves `scaled.gemm` on the copies that its kind reads, each
    made by a `scaled.quantize` of its own; `scaled-merge-quantize` merges those. Where only rhs has a scheme, lhs stays
    as it is. A `scaled.grouped_matmul` becomes a `scaled.grouped_gemm` of operands in groups. A matmul without schemes
    stays. A weight that has the scheme in which its parameter is stored is a `scaled.stored`: nothing quantizes it.
    One whose recipe asks for decoded operands reads a `scaled.dequantize` of a rowwise copy.

    State becomes arguments of the function: a delayed scale is `layer.role.scale`, random bits come from `rng`. In a
    function with gradients state is updated: amaxes go into `layer.role.amax_history`, the next scale follows from
    that, and both are results of the function with the same names. Experts have a delayed scale each, and a column of
    the history. A static scale is `layer.role.scale`, too, one for all experts, and never updated; the values that it
    saturates are counted in `layer.role.saturated`, in every function.

    The state of an op's body (`scaled.bodies`) is that of the function with the op, stacked for each trip of a loop.
    Amaxes are results of bodies, `layer.role.amax`; what quantizes gradients has its own, and the rest is recorded by
    the bodies of the forward alone. Random bits are not stacked: each trip draws its own. A layer that runs in loops of
    other lengths, too, or outside of loops, has a state for each of these places: in a loop of 3 trips, with loops of 2
    in it, that is `layer.loop3x2.role`.
    """
    states: dict[str, _State] = {}
    places = _Places(module)
    for function in bodies_first(module):
        state = states[ir.StringAttr(function.attributes["sym_name"]).value] = _State(function, places)
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            names = body_names(op)
            if not states.keys() >= set(names):
                wanted = "functions of the module that do not run the one with the op"
                fail(op, f"attribute '{BODIES}' must name {wanted}, got {', '.join(names)}")
            if names:
                state.take_bodies(op, [states[name] for name in names])
        gradients = find_gradients(function)
        products = [op.opview for op in walk_ops(function) if isinstance(op.opview, MatmulOp | GroupedMatmulOp)]
        # Told before anything is replaced: what makes an operand may be.
        for op, roles in [(product, operand_roles(product, gradients)) for product in products]:
            if "rhs_scheme" in op.attributes:
                _quantize_operands(op, roles, state)
            elif DECODED in op.attributes and isinstance(op, MatmulOp):
                _decode_operand(op, roles[1], state)
        state.finish()


class _Places:
    """In which loops the layers of a module run."""

    def __init__(self, module: ir.Operation):
        self._loops = loops_around(module)
        self._of_layers: dict[str, set[tuple[int, ...]]] = {}
        for function in functions_of(module):
            for op in walk_ops(function):
                if isinstance(op.opview, MatmulOp | GroupedMatmulOp):
                    self._of_layers.setdefault(op.opview.layer.value, set()).add(self._loops_of(function))

    def _loops_of(self, function: ir.Operation) -> tuple[int, ...]:
        return self._loops.get(ir.StringAttr(function.attributes["sym_name"]).value, ())

    def state_name(self, function: ir.Operation, layer: str, role: str) -> str:
        """The name of the state of a layer's operand in a function."""
        loops = self._loops_of(function)
        place = f"loop{'x'.join(map(str, loops))}" if loops and len(self._of_layers[layer]) > 1 else ""
        return ".".join(part for part in (layer, place, role) if part)


@dataclass(frozen=True)
class _Delayed:
    """How a delayed scale is updated."""

    history: int
    margin: int
    algorithm: str
    reduce: bool


@dataclass
class _Recorded:
    """Amaxes of one quantizer in this step."""

    scheme: Scheme
    layer: str
    settings: _Delayed
    scale: ir.Value
    location: ir.Location
    amaxes: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    """By what was quantized: the quantizations of one tensor become one."""


class _State:
    """State that the quantizations of a function read and, in training, update."""

    def __init__(self, function: ir.Operation, places: _Places):
        self._function = function
        self._places = places
        self._block = function.regions[0].blocks[0]
        self._is_body = is_private(function)
        self._is_training = is_training(function) or TRAINED in function.attributes
        self._known: dict[str, ir.Value] = {}
        self._recorded: dict[str, _Recorded] = {}
        self._counts: dict[str, ir.Value] = {}
        """By their names, the counts of saturated values so far."""
        for argument in self._block.arguments:
            name = argument_name(argument, STATE)
            if name is not None:
                self._known[name] = argument

    def quantize(
        self, op: MatmulOp | GroupedMatmulOp, source: ir.Value, scheme: Scheme, role: str, usage: str
    ) -> ir.Value:
        """Quantize an operand, with the state that its scheme needs."""
        row, col = (scheme, None) if usage == "rowwise" else (None, scheme)
        layer = op.layer.value
        ends, groups = _groups(op, source)
        if scheme.custom:
            return quantize(source, row, col, role=role, layer=layer).result
        if scheme.rounding == "stochastic":
            rng = self._argument(RNG, _info(source).random_state(), op.location)
            return quantize(source, row, col, role=role, rng=rng, ends=ends, groups=groups).result
        if scheme.source == "current":
            return quantize(source, row, col, role=role, ends=ends, groups=groups).result
        name = self._places.state_name(self._function, layer, role)
        shape = scale_shape(ScaledInfo(_info(source).shape, _info(source).dtype, row, col, groups))
        scale = self._argument(f"{name}.scale", _info(source).with_(shape, "f32"), op.location)
        if scheme.is_static and op.kind.value == "fprop":
            self._count(name, source, scale, scheme, ends, op.location)
        if not self._records(role) or scheme.is_static:
            return quantize(source, row, col, role=role, layer=layer, scale=scale, ends=ends, groups=groups).result
        made = quantize(source, row, col, role=role, layer=layer, scale=scale, ends=ends, groups=groups, new_amax=True)
        new = _Recorded(scheme, layer, _delayed_settings(op), scale, op.location)
        recorded = self._recorded.setdefault(name, new)
        assert made.new_amax is not None, "asked for above"
        recorded.amaxes.setdefault(flatten_root(source), made.new_amax)
        return made.result

    def _records(self, role: str) -> bool:
        """Whether the amaxes of a role are recorded here. Those of the forward are, where a body is the backward's."""
        is_backward = self._is_body and TRAINED not in self._function.attributes
        return self._is_training and (role == "grad_output" or not is_backward)

    def take_bodies(self, op: ir.Operation, bodies: Sequence["_State"]) -> None:
        """Hand the state of its bodies to an op, and record their amaxes."""
        trips = trips_of(op)
        functions = [body._function for body in bodies]
        operands: list[ir.Value] = []
        for name in added_states(functions, argument_states):
            info = next(_info(body._known[name]) for body in bodies if name in body._known)
            operands.append(self._argument(name, info if name == RNG else _stacked(info, trips), op.location))
        recorded = {name: one for body in bodies for name, one in body._recorded.items()}
        types = [_stacked(_info(one.scale), trips).type() for one in recorded.values()]
        if not operands:
            return
        made = extend_op(op, operands, types)
        for (name, one), amax in zip(
            recorded.items(), list(made.results)[len(made.results) - len(types) :], strict=True
        ):
            new = replace(one, scale=self._known[f"{name}.scale"], location=made.location, amaxes={})
            self._recorded.setdefault(name, new).amaxes[amax] = amax

    def _count(
        self,
        name: str,
        source: ir.Value,
        scale: ir.Value,
        scheme: Scheme,
        ends: ir.Value | None,
        location: ir.Location,
    ) -> None:
        """Count the values that a static scale saturates."""
        name = f"{name}.saturated"
        before = self._counts.get(name) or self._argument(name, _info(source).counter(), location)
        self._counts[name] = count_saturated(source, scale, before, scheme, ends=ends).result

    def _argument(self, name: str, info: TensorInfo, location: ir.Location) -> ir.Value:
        known = self._known.get(name)
        if known is not None and known.type != info.type():
            message = f"state '{name}' must have one shape, got {known.type} and {info}"
            fail(self._function, f"{message}; a layer with state is either one of experts or not")
        if name not in self._known:
            attributes = {STATE: ir.StringAttr.get(name)}
            self._known[name] = add_argument(self._block, info.type(), location, attributes)
        return self._known[name]

    def finish(self) -> None:
        """Move the state on, at the end of the function."""
        moved = list(self._counts.items())
        if self._is_body:
            moved += self._amaxes()
        elif self._is_training:
            moved += self._updates()
        append_results(self._function, [(value, {STATE: ir.StringAttr.get(name)}) for name, value in moved])

    def _amaxes(self) -> list[tuple[str, ir.Value]]:
        """The amaxes of a body."""
        with ir.InsertionPoint.at_block_terminator(self._block):
            return [(f"{name}.amax", _largest(recorded)) for name, recorded in self._recorded.items()]

    def _updates(self) -> list[tuple[str, ir.Value]]:
        """The delayed and the random state of the next step."""
        moved: list[tuple[str, ir.Value]] = []
        with ir.InsertionPoint.at_block_terminator(self._block):
            for name, recorded in self._recorded.items():
                moved += self._update(name, recorded)
            if RNG in self._known:
                with ir.Location.unknown():
                    moved.append((RNG, advance_rng(self._known[RNG]).result))
        return moved

    def _update(self, name: str, recorded: _Recorded) -> list[tuple[str, ir.Value]]:
        settings = recorded.settings
        scale = _info(recorded.scale)
        info = scale.with_((settings.history, *scale.shape))
        history = self._argument(f"{name}.amax_history", info, recorded.location)
        with recorded.location:
            moved = update_scale(
                recorded.scale,
                history,
                _largest(recorded),
                recorded.scheme,
                margin=settings.margin,
                algorithm=settings.algorithm,
            )
            if settings.reduce:
                moved.attributes[REDUCE] = ir.UnitAttr.get()
            if settings.algorithm == "custom":
                moved.attributes[LAYER] = ir.StringAttr.get(recorded.layer)
        return [(f"{name}.scale", moved.new_scale), (f"{name}.amax_history", moved.new_history)]


def _largest(recorded: _Recorded) -> ir.Value:
    """The largest of the amaxes of one quantizer, at the current place."""
    amax, *others = recorded.amaxes.values()
    maximum = {"torch": "torch.aten.maximum", "builtin": "arith.maximumf"}[_info(amax).namespace]
    with recorded.location:
        for other in others:
            amax = ir.Operation.create(maximum, results=[amax.type], operands=[amax, other]).result
    return amax


def _stacked(info: TensorInfo, trips: int | None) -> TensorInfo:
    return info if trips is None else info.with_((trips, *info.shape))


def _groups(op: MatmulOp | GroupedMatmulOp, source: ir.Value) -> tuple[ir.Value | None, int]:
    """The ends of an operand's groups, if it is a matrix, and how many there are."""
    if not isinstance(op, GroupedMatmulOp):
        return None, 0
    (count,) = _info(op.ends).shape
    return (op.ends if len(_info(source).shape) == 2 else None), count or 0


def _quantize_operands(op: MatmulOp | GroupedMatmulOp, roles: tuple[Role, Role], state: _State) -> None:
    kind = op.kind.value
    operands: list[ir.Value] = []
    with ir.InsertionPoint(op), op.location:
        for name, role, usage in zip(("lhs", "rhs"), roles, OPERAND_USAGES[kind], strict=True):
            operand = getattr(op, name)
            if f"{name}_scheme" in op.attributes:
                scheme = SchemeAttr(op.attributes[f"{name}_scheme"]).scheme
                if role == "weight" and usage == ROWWISE and stored_scheme(operand) == scheme:
                    operand = stored(operand, scheme, groups=_groups(op, operand)[1]).result
                else:
                    operand = state.quantize(op, operand, scheme, role, usage)
            operands.append(operand)
        product = _gemm(op, *operands)
    op.result.replace_all_uses_with(product)
    op.operation.erase()


def _gemm(op: MatmulOp | GroupedMatmulOp, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    kind, layer, result = op.kind.value, op.layer.value, op.result.type
    if isinstance(op, GroupedMatmulOp):
        return grouped_gemm(lhs, rhs, op.ends, kind=kind, result=result, layer=layer).result
    batch_dims = op.batch_dims.value
    return gemm(lhs, rhs, kind=kind, result=result, layer=layer, batch_dims=batch_dims, bias=op.bias).result


def _decode_operand(op: MatmulOp, role: Role, state: _State) -> None:
    """Multiply in high precision what the forward quantized: rhs, as its rowwise copy decodes."""
    scheme = SchemeAttr(op.attributes[DECODED]).scheme
    with ir.InsertionPoint(op), op.location:
        made = state.quantize(op, op.rhs, scheme, role, "rowwise")
        op.operation.operands[1] = dequantize(made, op.rhs.type).result


def _delayed_settings(op: MatmulOp | GroupedMatmulOp) -> _Delayed:
    if DELAYED not in op.attributes:
        fail(op, f"must have the attribute '{DELAYED}', which says how a delayed scale is updated")
    found = op.attributes[DELAYED]
    entries = {entry.name: entry.attr for entry in found} if isinstance(found, ir.DictAttr) else {}
    history, margin, algorithm, reduce = (entries.get(name) for name in ("history", "margin", "algorithm", "reduce"))
    if (
        not isinstance(history, ir.IntegerAttr)
        or not isinstance(margin, ir.IntegerAttr)
        or not isinstance(algorithm, ir.StringAttr)
        or not isinstance(reduce, ir.BoolAttr)
    ):
        wanted = "the integers history and margin, the string algorithm and the boolean reduce"
        fail(op, f"attribute '{DELAYED}' must hold {wanted}, got {found}")
    return _Delayed(history.value, margin.value, algorithm.value, reduce.value)


def _info(value: ir.Value) -> TensorInfo:
    info = tensor_info(value.type)
    assert info is not None, "operands of a matmul are ranked tensors"
    return info
