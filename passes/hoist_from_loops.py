"""`scaled-hoist-from-loops`."""

from collections.abc import Iterator

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import scaled_info_of, tensor_info
from steelyard.ir.attributes import PARAMETER, SOURCES, TRIPS, WEIGHT
from steelyard.ir.bodies import body_names, extend_op, named_functions, trips_of
from steelyard.ir.functions import add_argument, argument_name, functions_of, is_private
from steelyard.ir.torch_ops import erase_unused_views, view_root
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.weight_functions import is_of_parameter, make_weight_function


@register_pass
def hoist_from_loops(module: ir.Operation) -> None:
    """Move the quantization of parameters out of loops, for weights that are quantized once.

    Takes public functions with loops (`scaled.bodies`, `scaled.trips`), also in loops, whose bodies quantize, without
    state, their part of a parameter that is stacked for all trips. Leaves each such quantization in a function of its
    own, as `scaled-hoist-weights` does. The body has an argument for its result, a body around it one for those of all
    its trips, and the function with the loops one for all, a stack of quantized matrices (`scaled.trips`).
    """
    for function in [each for each in functions_of(module) if not is_private(each)]:
        # Hoisting makes loops again, with one operand more.
        while (found := next(_parts(module, function), None)) is not None:
            _hoist(module, *found)


def _parts(module: ir.Operation, function: ir.Operation) -> Iterator[tuple[QuantizeOp, list[ir.Operation]]]:
    """What quantizes, in a loop, its part of a parameter of the function, and the loops, from the outermost inwards."""
    functions = named_functions(module)
    waiting: list[tuple[ir.Operation, list[ir.Operation]]] = [(function, [])]
    for body, loops in waiting:
        for op in [each.operation for each in body.regions[0].blocks[0].operations]:
            view, names = op.opview, body_names(op)
            if loops and isinstance(view, QuantizeOp) and _is_of_part(view, loops):
                yield view, loops
            if trips_of(op) is not None and len(names) == 1 and names[0] in functions:
                waiting.append((functions[names[0]], [*loops, op]))


def _is_of_part(view: QuantizeOp, loops: list[ir.Operation]) -> bool:
    """Whether an op in the innermost loop quantizes, with no other operand, its part of a parameter."""
    info = scaled_info_of(view.result)
    # The matrices of experts are a stack in each trip.
    is_matrices = len(info.shape) == (3 if info.groups else 2)
    if not is_of_parameter(view) or len(view.operation.operands) > 1 or not is_matrices:
        return False
    wholes = _wholes(ir.BlockArgument(view_root(view.source)), loops)
    return bool(wholes) and argument_name(wholes[-1], PARAMETER) is not None


def _wholes(part: ir.BlockArgument, loops: list[ir.Operation]) -> list[ir.BlockArgument]:
    """What an argument of the innermost body is a part of, in each loop outwards; empty if it is no part."""
    found: list[ir.BlockArgument] = []
    for loop in reversed(loops):
        whole = loop.operands[part.arg_number] if part.arg_number < len(loop.operands) else None
        if not isinstance(whole, ir.BlockArgument):
            return []
        info, part_info = tensor_info(whole.type), tensor_info(part.type)
        if info is None or part_info is None or info.shape != (trips_of(loop), *part_info.shape):
            return []
        found.append(whole)
        part = whole
    return found


def _hoist(module: ir.Operation, view: QuantizeOp, loops: list[ir.Operation]) -> None:
    """Hoist one quantization out of the bodies of loops."""
    name = f"weight_{len(named_functions(module))}"
    (part,) = make_weight_function(module, view, name)
    wholes = _wholes(part, loops)
    symbol, location, viewed = ir.FlatSymbolRefAttr.get(name), view.location, view.source
    own: dict[str, ir.Attribute] = {WEIGHT: symbol}
    info = scaled_info_of(view.result)
    taken = add_argument(part.owner, info.type(), location, own)
    view.result.replace_all_uses_with(taken)
    view.operation.erase()
    erase_unused_views(viewed)
    for loop, whole in zip(reversed(loops), wholes, strict=True):
        info = info.stacked(trips_of(loop) or 0)
        if whole is wholes[-1]:
            own |= {
                PARAMETER: ir.StringAttr.get(argument_name(whole, PARAMETER) or ""),
                SOURCES: ir.DenseI64ArrayAttr.get([whole.arg_number]),
                TRIPS: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), info.groups),
            }
        extend_op(loop, [add_argument(whole.owner, info.type(), location, own)], [])
