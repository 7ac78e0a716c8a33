"""Ops that run functions of the module: loops, branches and checkpointed regions, whose functions are their bodies.

A body takes an operand of its op, or a part of it, for each of its arguments. A pass that adds arguments or results to
a body adds operands or results to the op, at the end. If there are several bodies, the op has what any of them has, by
name, and each body takes what it has itself.
"""

from collections.abc import Callable, Iterable, Sequence

from torch_mlir import ir

from steelyard.ir.attributes import BODIES, HANDED, MEASURES, STATE, TRIPS, WEIGHT
from steelyard.ir.functions import argument_attributes, functions_of, result_attributes


def body_names(op: ir.Operation) -> list[str]:
    """The names of the functions that an op runs."""
    if BODIES not in op.attributes:
        return []
    return [ir.FlatSymbolRefAttr(name).value for name in ir.ArrayAttr(op.attributes[BODIES])]


def trips_of(op: ir.Operation) -> int | None:
    """How often an op runs its body; None where what is added to it is not stacked."""
    return ir.IntegerAttr(op.attributes[TRIPS]).value if TRIPS in op.attributes else None


def is_checkpoint(op: ir.Operation) -> bool:
    """Whether an op is a checkpointed region with its backward: its body runs once, on its operands as they are."""
    return op.name in ("jax.remat2", "jax.checkpoint") and len(body_names(op)) == 1


def named_functions(module: ir.Operation) -> dict[str, ir.Operation]:
    """The functions of a module by name."""
    return {ir.StringAttr(function.attributes["sym_name"]).value: function for function in functions_of(module)}


def bodies_first(module: ir.Operation) -> list[ir.Operation]:
    """The functions of a module, each after the functions that its ops run, unless those run it."""
    functions = named_functions(module)
    ordered: dict[str, ir.Operation] = {}
    seen: set[str] = set()

    def add(name: str) -> None:
        if name in seen or name not in functions:
            return
        seen.add(name)
        for op in functions[name].regions[0].blocks[0].operations:
            for body in body_names(op.operation):
                add(body)
        ordered[name] = functions[name]

    for name in functions:
        add(name)
    return list(ordered.values())


def loops_around(module: ir.Operation) -> dict[str, tuple[int, ...]]:
    """By the names of bodies, the trips of the loops that each runs in, from the outermost inwards."""
    functions = named_functions(module)
    found: dict[str, tuple[int, ...]] = {}
    for function in reversed(bodies_first(module)):
        own = found.get(ir.StringAttr(function.attributes["sym_name"]).value, ())
        for op in function.regions[0].blocks[0].operations:
            trips = trips_of(op.operation)
            for name in body_names(op.operation):
                if name in functions:
                    found.setdefault(name, own if trips is None else (*own, trips))
    return found


def argument_states(function: ir.Operation) -> list[str | None]:
    """The name of the state that each argument is; None for the others."""
    return _states(argument_attributes(function))


def added_arguments(function: ir.Operation) -> list[str | None]:
    """The name of the state, of the function of the weight, or of the quantized tensor that each argument of a body
    is; None for the others."""
    return [_added_name(own) for own in argument_attributes(function)]


def _added_name(own: dict[str, ir.Attribute]) -> str | None:
    if WEIGHT in own:
        return ir.FlatSymbolRefAttr(own[WEIGHT]).value
    named = next((own[each] for each in (STATE, HANDED) if each in own), None)
    return None if named is None else ir.StringAttr(named).value


def result_states(function: ir.Operation) -> list[str | None]:
    """The name of the state that each result is; None for the others. Numbers that are measured are left out."""
    return _states([own for own in result_attributes(function) if MEASURES not in own])


def added_states(bodies: Iterable[ir.Operation], states: Callable[[ir.Operation], list[str | None]]) -> list[str]:
    """The names of what was added to an op for its bodies, in order."""
    return list(dict.fromkeys(name for body in bodies for name in states(body) if name is not None))


def _states(attributes: Sequence[dict[str, ir.Attribute]]) -> list[str | None]:
    return [ir.StringAttr(own[STATE]).value if STATE in own else None for own in attributes]


def extend_op(op: ir.Operation, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> ir.Operation:
    """The op with more operands and results, in its place."""
    types = [result.type for result in op.results]
    return _made_again(op, [*op.operands, *operands], [*types, *results])


def with_result_types(op: ir.Operation, types: Sequence[ir.Type]) -> ir.Operation:
    """The op with results of other types, in its place."""
    return _made_again(op, list(op.operands), types)


def _made_again(op: ir.Operation, operands: Sequence[ir.Value], types: Sequence[ir.Type]) -> ir.Operation:
    attributes = {name: op.attributes[name] for name in op.attributes}
    made = ir.Operation.create(
        op.name,
        results=list(types),
        operands=list(operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, made.results, strict=False):
        old.replace_all_uses_with(new)
    op.erase()
    return made
