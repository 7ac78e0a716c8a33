"""`scaled-hoist-from-loops`."""

from torch_mlir import ir

from steelyard.dialect.quantize import QuantizeOp
from steelyard.dialect.types import scaled_info_of, tensor_info
from steelyard.ir.attributes import PARAMETER, SOURCES, TRIPS, WEIGHT
from steelyard.ir.bodies import body_names, extend_op, named_functions, trips_of
from steelyard.ir.functions import add_argument, argument_name, functions_of, is_private
from steelyard.ir.torch_ops import erase_unused_views, view_root, walk_ops
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.weight_functions import is_of_parameter, make_weight_function


@register_pass
def hoist_from_loops(module: ir.Operation) -> None:
    """Move the quantization of parameters out of loops, for weights that are quantized once.

    Takes public functions with loops (`scaled.bodies`, `scaled.trips`) whose bodies quantize, without state, their part
    of a parameter that is stacked for all trips. Leaves each such quantization in a function of its own, as
    `scaled-hoist-weights` does. The body has an argument for its result, and the function with the loop one for those
    of all trips, a stack of quantized matrices, with the number of trips (`scaled.trips`).
    """
    functions = named_functions(module)
    for function in [each for each in functions_of(module) if not is_private(each)]:
        for op in [op.operation for op in function.regions[0].blocks[0].operations]:
            names, trips = body_names(op), trips_of(op)
            if trips is None or len(names) != 1 or names[0] not in functions:
                continue
            body = functions[names[0]]
            for inner in walk_ops(body):
                view = inner.opview
                if isinstance(view, QuantizeOp) and _is_of_part(view, op, trips):
                    op = _hoist(module, view, op, trips)


def _is_of_part(view: QuantizeOp, op: ir.Operation, trips: int) -> bool:
    """Whether an op in a body quantizes, with no other operand, a trip's part of a parameter of the loop's function."""
    if not is_of_parameter(view) or len(view.operation.operands) > 1 or len(scaled_info_of(view.result).shape) != 2:
        return False
    part = ir.BlockArgument(view_root(view.source))
    if part.arg_number >= len(op.operands):
        return False
    whole = op.operands[part.arg_number]
    if not isinstance(whole, ir.BlockArgument) or argument_name(whole, PARAMETER) is None:
        return False
    info, part_info = tensor_info(whole.type), tensor_info(part.type)
    return info is not None and part_info is not None and info.shape == (trips, *part_info.shape)


def _hoist(module: ir.Operation, view: QuantizeOp, op: ir.Operation, trips: int) -> ir.Operation:
    """Hoist one quantization out of the body of a loop; returns the loop with the new operand."""
    name = f"weight_{len(named_functions(module))}"
    (part,) = make_weight_function(module, view, name)
    whole = ir.BlockArgument(op.operands[part.arg_number])
    symbol = ir.FlatSymbolRefAttr.get(name)
    info, location, viewed = scaled_info_of(view.result), view.location, view.source
    taken = add_argument(part.owner, view.result.type, location, {WEIGHT: symbol})
    view.result.replace_all_uses_with(taken)
    view.operation.erase()
    erase_unused_views(viewed)
    stacked = type(info)((trips, *info.shape), info.dtype, info.row, info.col, trips).type()
    attributes: dict[str, ir.Attribute] = {
        PARAMETER: ir.StringAttr.get(argument_name(whole, PARAMETER) or ""),
        WEIGHT: symbol,
        SOURCES: ir.DenseI64ArrayAttr.get([whole.arg_number]),
        TRIPS: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), trips),
    }
    return extend_op(op, [add_argument(whole.owner, stacked, location, attributes)], [])
