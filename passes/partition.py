"""`scaled-partition`."""

from collections.abc import Iterable, Mapping, Sequence

from torch_mlir import ir

from steelyard.ir.attributes import PRIMAL, SAVED, SOURCES, TANGENT
from steelyard.ir.functions import Argument, functions_of, is_private, is_training, make_function
from steelyard.ir.joint import Attributes, Joint, is_primal
from steelyard.ir.view_ops import HAS_EFFECTS
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.keeping import Keeping

COMPACT = "compact"

Arguments = list[tuple[Argument, Attributes]]
Results = list[tuple[ir.Value, Attributes]]


@register_pass
def partition(module: ir.Operation, *, save: str = "") -> None:
    """Split a function with gradients into `@forward` and `@backward`, keeping as few bytes between them as possible.

    Takes one function whose gradients are marked (`scaled.tangent` arguments, `scaled.gradient` results). Leaves
    `@forward`, whose last results are what is kept (`scaled.saved`), and `@backward`, which takes those, the arguments
    of the forward that it reads (`scaled.primal`), the tangents, state and weights. Private functions, the bodies of
    ops, stay as they are.

    A quantized tensor is kept with only the copies that the backward reads. Arguments, quantized weights and state cost
    nothing. Views, decoded values, and pointwise ops whose operands cost less than their result are computed again. So
    are ops of a checkpointed region, except random numbers. Everything else that the backward reads is kept. With
    `save=compact`, quantizations of what is kept anyway, or of its norm, are also computed again, and the inputs of
    gelu and attention are kept in bf16.
    """
    if save not in ("", COMPACT):
        fail(module, f"save must be '{COMPACT}' or empty, got '{save}'")
    for function in functions_of(module):
        if is_training(function) and not is_private(function):
            _split(module, function, save == COMPACT)


def _split(module: ir.Operation, function: ir.Operation, compact: bool) -> None:
    joint = Joint(function)
    keeping = Keeping(joint, compact=compact)
    make_function(module, "forward", *_forward(joint, keeping), function.location)
    make_function(module, "backward", *_backward(joint, keeping), function.location, keeping.substitutes())
    function.erase()


def _forward(joint: Joint, keeping: Keeping) -> tuple[Arguments, list[ir.Operation], Results]:
    """Arguments, ops and results of the forward."""
    results = joint.forward_results + [(kept.result, {SAVED: ir.UnitAttr.get()}) for kept in keeping.saved]
    ops = _live(joint.ops, results, {})
    taken = _taken(joint, ops, results)
    arguments: Arguments = [(a, own) for a, own in joint.arguments.items() if a in taken or is_primal(own)]
    return _with_sources(joint, arguments), ops, results


def _backward(joint: Joint, keeping: Keeping) -> tuple[Arguments, list[ir.Operation], Results]:
    """Arguments, ops and results of the backward."""
    results = joint.backward_results
    ops = _live([op for op in joint.ops if op in keeping.rerun], results, keeping.substitutes())
    kept = {kept.value if kept.restored is None else kept.result: kept.result for kept in keeping.saved}
    taken = _taken(joint, ops, results) - kept.keys()
    rest = [(a, own) for a, own in joint.arguments.items() if a in taken and TANGENT not in own]
    arguments: Arguments = [((value, stored), {SAVED: ir.UnitAttr.get()}) for value, stored in kept.items()]
    arguments += [(a, own | {PRIMAL: _integer(a.arg_number)}) for a, own in rest if is_primal(own)]
    arguments += [(a, own) for a, own in joint.arguments.items() if TANGENT in own]
    arguments += [(a, own) for a, own in rest if not is_primal(own)]
    return _with_sources(joint, arguments), ops, results


def _taken(joint: Joint, ops: list[ir.Operation], results: Results) -> set[ir.Value]:
    """The arguments that a function reads: parts of a weight come together, with what it is made from."""
    read = {operand for op in ops for operand in op.operands} | {value for value, _ in results}
    weights = joint.weights_in(read)
    return (read & joint.arguments.keys()) | weights | joint.sources_of(weights)


def _with_sources(joint: Joint, arguments: Arguments) -> Arguments:
    """The arguments with `scaled.sources` counted again."""
    positions = {(v[0] if isinstance(v, tuple) else v): i for i, (v, _) in enumerate(arguments)}
    numbers = {argument.arg_number: positions.get(argument) for argument in joint.arguments}
    counted: Arguments = []
    for value, own in arguments:
        if SOURCES in own:
            sources = [numbers[number] for number in ir.DenseI64ArrayAttr(own[SOURCES])]
            own = own | {SOURCES: ir.DenseI64ArrayAttr.get([source for source in sources if source is not None])}
        counted.append((value, own))
    return counted


def _live(
    ops: Sequence[ir.Operation], results: Results, substitutes: Mapping[ir.Value, ir.Value]
) -> list[ir.Operation]:
    """The ops that the results depend on, in order."""

    def read_in_place_of(values: Iterable[ir.Value]) -> set[ir.Value]:
        return {substitutes.get(value, value) for value in values}

    read = read_in_place_of(value for value, _ in results)
    live: list[ir.Operation] = []
    for op in reversed(ops):
        if op.name in HAS_EFFECTS or any(result in read for result in op.results):
            live.append(op)
            read |= read_in_place_of(op.operands)
    return live[::-1]


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
